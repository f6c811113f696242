"""A latency-bandwidth model of the all-reduce, fitted to measurements, and what it says of more ranks.

The model of a ring of n ranks and a message of B bytes over links of latency l and s seconds per byte is

    fixed + 2 (n - 1) l + 2 (n - 1) / n * B * s

(Thakur, Rabenseifner and Gropp 2005, section 3.4, plus what Horovod's cycle and negotiation cost). What is measured on
this machine gives `fixed` and a bound on 1 / s that the software has here; the links give l and s.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

RANKS = (8, 64, 512)


@dataclasses.dataclass(frozen=True)
class Link:
    """A network between ranks: gbit_per_sec > 0 of one rank in one direction, latency_us >= 0 of one message."""

    gbit_per_sec: float
    latency_us: float

    @property
    def seconds_per_byte(self) -> float:
        return 8e-9 / self.gbit_per_sec

    def __str__(self) -> str:
        return f"{self.gbit_per_sec:g} Gbit/s, {self.latency_us:g} us"


@dataclasses.dataclass(frozen=True)
class Model:
    """An all-reduce of `ranks` ranks takes fixed_seconds + seconds_per_byte * bytes.

    relative_error: the largest of the fit, as a part of what was measured.
    """

    ranks: int
    fixed_seconds: float
    seconds_per_byte: float
    relative_error: float

    def __call__(self, size: float) -> float:
        """Seconds for so many bytes over the ranks it was fitted to."""
        return self.fixed_seconds + self.seconds_per_byte * size

    def seconds(self, size: float, ranks: int, link: Link) -> float:
        """Seconds for so many bytes over other ranks and links, never faster per byte than was measured here.

        Args:
            size: bytes.
            ranks: >= 2.
            link: between them.
        """
        measured = self.seconds_per_byte * self.ranks / (2 * (self.ranks - 1))
        per_byte = max(measured, link.seconds_per_byte)
        hops = 2 * (ranks - 1)
        return self.fixed_seconds + hops * link.latency_us * 1e-6 + hops / ranks * size * per_byte


def fit(points: Sequence[tuple[float, float]], ranks: int) -> Model:
    """The model with the smallest squared relative error; neither term is negative.

    Args:
        points: (bytes, seconds) of at least two sizes.
        ranks: >= 2, that were measured.
    """
    sizes, seconds = np.array(points, float).T
    # Relative errors: else the largest message alone would decide, and the latency be whatever is left.
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
    """The part of a step that is not waiting for reductions, if nothing of them is hidden behind computing.

    Args:
        alone_seconds: of a step without them.
        reductions: for each size in bytes how many of them a step has.
        model: of the all-reduce.
        ranks: >= 2.
        link: between them.
    """
    waiting = sum(count * model.seconds(size, ranks, link) for size, count in reductions.items())
    return alone_seconds / (alone_seconds + waiting)
