"""Projects the scaling efficiency to more ranks, with a latency-bandwidth model of the all-reduce.

A ring of n ranks reduces a message of B bytes, over links with latency l and s seconds per byte, in

    fixed + 2 (n - 1) l + 2 (n - 1) / n * B * s

seconds, where `fixed` is the cost of Horovod's cycle and negotiation. The measurements of this machine give `fixed`
and a lower bound of s, that of the software; the links give l and s.

Reference: Thakur, Rabenseifner and Gropp 2005, section 3.4.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hvdgan.diagnostics.speed.blocks import PARTS

RANKS = (8, 64, 512)


@dataclasses.dataclass(frozen=True)
class Link:
    """A network between ranks.

    Args:
        gbit_per_sec: bandwidth of one rank in one direction, > 0.
        latency_us: latency of one message in microseconds, >= 0.
    """

    gbit_per_sec: float
    latency_us: float

    @property
    def seconds_per_byte(self) -> float:
        return 8e-9 / self.gbit_per_sec

    def __str__(self) -> str:
        return f"{self.gbit_per_sec:g} Gbit/s, {self.latency_us:g} us"


@dataclasses.dataclass(frozen=True)
class Model:
    """The cost of an all-reduce: fixed_seconds + seconds_per_byte * bytes.

    Args:
        ranks: number of ranks that were measured.
        fixed_seconds: cost of an empty message.
        seconds_per_byte: cost of each byte.
        relative_error: largest error of the fit, relative to the measurement.
    """

    ranks: int
    fixed_seconds: float
    seconds_per_byte: float
    relative_error: float

    def __call__(self, size: float) -> float:
        """Return the seconds for a message of `size` bytes over the ranks that were measured."""
        return self.fixed_seconds + self.seconds_per_byte * size

    def seconds(self, size: float, ranks: int, link: Link) -> float:
        """Return the seconds over other ranks and links, never faster per byte than was measured here."""
        measured = self.seconds_per_byte * self.ranks / (2 * (self.ranks - 1))
        per_byte = max(measured, link.seconds_per_byte)
        hops = 2 * (ranks - 1)
        return self.fixed_seconds + hops * link.latency_us * 1e-6 + hops / ranks * size * per_byte


def fit(points: Sequence[tuple[float, float]], ranks: int) -> Model:
    """Fit the model by least squares of the relative errors; neither term is negative.

    Args:
        points: (bytes, seconds) of at least two sizes.
        ranks: number of ranks that were measured, >= 2.
    """
    sizes, seconds = np.array(points, float).T
    # With absolute errors the largest message alone would determine the fit, and the latency would be arbitrary.
    columns = np.stack([1 / seconds, sizes / seconds], axis=1)
    fixed, slope = np.linalg.lstsq(columns, np.ones(len(seconds)), rcond=None)[0]
    if fixed < 0:
        fixed, slope = 0.0, _one_term(columns[:, 1])
    elif slope < 0:
        fixed, slope = _one_term(columns[:, 0]), 0.0
    error = float(np.max(np.abs(columns @ [fixed, slope] - 1)))
    return Model(ranks, float(fixed), float(slope), error)


def _one_term(column: np.ndarray) -> float:
    return float(column.sum() / (column @ column))


def efficiency(alone_seconds: float, reductions: Mapping[float, float], model: Model, ranks: int, link: Link) -> float:
    """Return the part of a step that does not wait for all-reduces, if none of them overlaps with computing."""
    waiting = sum(count * model.seconds(size, ranks, link) for size, count in reductions.items())
    return alone_seconds / (alone_seconds + waiting)


def project(stages: Mapping[str, Mapping[str, Any]], model: Model, links: Sequence[Link]) -> list[dict[str, Any]]:
    """Project each stage to more ranks: its compute time stays, and the model gives its all-reduces.

    Args:
        stages: summary of each stage in the largest launch.
        model: cost of an all-reduce.
        links: networks to project to.

    Returns:
        A row for each link, stage and number of ranks.
    """
    rows = []
    for link in links:
        for name, stage in stages.items():
            alone = sum(stage[part]["median"] for part in PARTS if part != "exposed_allreduce_seconds")
            reductions: dict[float, float] = {}
            for update in stage["updates"].values():
                size = update["bytes_reduced"]
                reductions[size] = reductions.get(size, 0.0) + 1 / update["every"]
            rows += [
                {
                    "link": str(link),
                    "stage": name,
                    "ranks": ranks,
                    "efficiency": efficiency(alone, reductions, model, ranks, link),
                    "projected": True,
                }
                for ranks in RANKS
            ]
    return rows
