"""Measures ensembles of whole held-out fields against the truth; each rank measures fields of its own."""

import dataclasses
import functools
import math
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from hvdgan.data import Samples
from hvdgan.data.holdout import split
from hvdgan.distributed.ranks import Ranks
from hvdgan.errors import UserError, unwritable
from hvdgan.errors.shared_errors import from_all, on_all
from hvdgan.evaluation.comparison import Say
from hvdgan.evaluation.ensembles import Sums, ensemble_figures, ensemble_sums, windowed_powers
from hvdgan.evaluation.fields import Rings
from hvdgan.evaluation.real_statistics import stamp_of
from hvdgan.inference.inputs import open_fields
from hvdgan.inference.tiles import WholeFields
from hvdgan.inference.trained import TrainedNetworks
from hvdgan.inference.whole_fields import FieldDrawing, tile_bar
from hvdgan.settings.evaluation import EvaluationRequest

_MEMBERS = 8
_PLACES = 2**20
"""places that are scored at a time, about"""


def open_held_out(trained: TrainedNetworks, asked: EvaluationRequest, ranks: Ranks) -> Samples:
    """Whole fields with their truth: those of --data, or those of the run's data on which it was not trained."""
    opened = functools.partial(open_fields, trained, asked.data, asked.axes, with_truth=True)
    source = on_all(opened, ranks, "the fields", names_rank=True)
    if asked.data is not None:
        return source
    training, held_out = split({"": source}, trained.config.holdout, ranks, is_evaluated=trained.recipe.evaluates())
    return held_out[""].some(trained.config.evaluation.eval_held_out) if held_out else training[""]


class WholeComparison:
    """Compares samples of whole fields with the truth, as Comparison does those of the size in training."""

    names = frozenset[str]()

    def __init__(
        self, trained: TrainedNetworks, source: Samples, asked: EvaluationRequest, seed: int, ranks: Ranks
    ) -> None:
        for name in ("images", "real_samples", "eval_features", "inception", "eval_resize", "standing_statistics"):
            if getattr(asked, name) is not None:
                flag = f"--{name.replace('_', '-')}"
                raise UserError(f"{flag}: cannot be used with --whole; leave one of the two out")
        if not trained.recipe.shows_data:
            raise UserError(f"--whole: {type(trained.recipe).__name__} starts from no fields of the data; leave it out")
        self._members = asked.members or _MEMBERS
        self._count = min(asked.samples // self._members, len(source))
        if not self._count:
            raise UserError(f"--samples {asked.samples}: fewer than --members {self._members}; raise it")
        self._trained, self._source, self._asked, self._seed, self._ranks = trained, source, asked, seed, ranks

    def scale(self) -> dict[str, Any]:
        """What the figures depend on besides the networks and the seed, as JSON types."""
        return {"whole": self._source.layout.shape, "data": self._source.fingerprint, **self._counts()}

    def probe(self) -> list[Any]:
        return [stamp_of(self._source)]

    def facts(self) -> dict[str, Any]:
        """What the figures need to be compared with others, as JSON types."""
        data = {"data": self._source.name, "data_fingerprint": self._source.fingerprint}
        space = list(self._source.layout.shape[:-1])
        return {**self._counts(), "whole": space, **data, "features": "none", "ranks": self._ranks.size}

    def __call__(self, say: Say) -> dict[str, float]:
        """Return the figures by their names in evaluation.jsonl; every rank calls this."""
        trained, asked, ranks, source = self._trained, self._asked, self._ranks, self._source

        def measured() -> list[Sums]:
            nets, count = trained.nets(asked.weights), self._count * self._members
            fields = WholeFields(trained.recipe, nets, seed=self._seed, truncation=asked.truncation)
            drawing = FieldDrawing(fields, source, trained.recipe.data, asked.tile, count, self._members)
            rings = Rings(drawing.shape[1:-1])
            own = range(ranks.rank, self._count, ranks.size)
            with tile_bar(len(own) * self._members * len(drawing.tiles), ranks.rank) as bar:
                return [_sums(drawing, rings, index, bar.update) for index in own]

        sums = [each for some in from_all(measured, ranks, "the fields", names_rank=True) for each in some]
        space, maps = source.layout.shape[:-1], trained.recipe.data.values
        channels = maps.images.channels if maps else tuple(map(str, range(trained.recipe.data.channels)))
        found = ensemble_figures(sums, channels, min(side for side in space if side > 1))
        size = " x ".join(map(str, space))
        noun = "field" if self._count == 1 else "fields"
        say(f"{self._count:,} {noun} of {size}, compared with {self._members} members each in the units of the data")
        return {f"eval/whole_{name}": value for name, value in found.items()}

    def _counts(self) -> dict[str, int]:
        return {"samples": self._count * self._members, "real_samples": self._count, "members": self._members}


def _sums(drawing: FieldDrawing, rings: Rings, index: int, count: Callable[[], object]) -> Sums:
    """The sums over a field and its members, which lie in a file meanwhile; count() is called after each tile."""
    stored = dataclasses.replace(drawing, source=drawing.source.replace(is_mapped=False)).read(index)
    truth = drawing.known(stored["images"][0].astype(np.float32))
    powers = {"truth": windowed_powers(rings, truth), "members": np.zeros((truth.shape[-1], rings.count))}
    scores: dict[str, np.ndarray] = {}
    with tempfile.TemporaryFile() as file:
        for number in range(index * drawing.members, (index + 1) * drawing.members):
            made = np.empty(truth.shape, np.float32)
            for tile in drawing.tiles:
                made[tile.region] = drawing.part(number, tile)
                count()
            powers["members"] += windowed_powers(rings, made) / drawing.members
            try:
                made.tofile(file)
            except OSError as error:
                raise unwritable(tempfile.gettempdir(), error) from error
        del made
        rows, row = len(truth), math.prod(truth.shape[1:])
        for first in range(0, rows, many := max(_PLACES // row, 1)):
            some = truth[first : first + many]
            members = []
            for member in range(drawing.members):
                file.seek((member * rows + first) * row * truth.itemsize)
                members.append(np.fromfile(file, np.float32, some.size).reshape(-1, some.shape[-1]))
            for name, each in ensemble_sums(some.reshape(members[0].shape), np.stack(members)).items():
                scores[name] = scores.get(name, 0.0) + each
    return {name: each.tolist() for name, each in {**scores, **powers}.items()}
