"""Draws whole fields over all ranks: each computes tiles of its own, and rank 0 puts them together on the disk."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hvdgan.data import BadImage, Samples
from hvdgan.distributed.ranks import Ranks
from hvdgan.errors import RunError, UserError, unwritable
from hvdgan.errors.shared_errors import on_all
from hvdgan.inference.tiles import Tile, WholeFields
from hvdgan.recipe import DataSpec
from hvdgan.recipe.display import shown
from hvdgan.recipe.sampling import Input
from hvdgan.values.sample_values import Shape


@dataclasses.dataclass(frozen=True)
class FieldDrawing:
    """Samples of whole fields, in the order of the data, each by tiles.

    Sample n starts from field n // members; conditions (N, k) replace those of the data, in turn.
    """

    fields: WholeFields
    source: Samples
    spec: DataSpec
    tile: int  # pixels
    count: int
    members: int = 1
    conditions: np.ndarray | None = None

    @property
    def shape(self) -> Shape:
        return (self.count, *self.source.layout.shape[:-1], self.spec.channels)

    @functools.cached_property
    def tiles(self) -> list[Tile]:
        return self.fields.tiles(self.shape[1:-1], self.tile)

    def facts(self, number: int) -> Input:
        """What describes the field from which a sample starts, (1, ...) each."""
        index = number // self.members
        found = self.source.facts(np.array([index]))
        if self.conditions is not None:
            found["conditions"] = self.conditions[[index % len(self.conditions)]]
        if self.spec.conditions and "conditions" not in found:
            raise UserError("the run has conditions, and the fields have none; give --condition or --conditions")
        return found

    @contextlib.contextmanager
    def drawn(self, out: Path, ranks: Ranks) -> Iterator[np.ndarray]:
        """The samples (N, *space, C) in the units of the data, in a file beside `out`, on rank 0; else nothing.

        Each rank writes its tiles to a file of its own, since two hosts must not write to one file of a network's file
        system. The files are gone after the block.
        """
        whole, *own = (out.with_name(f".{out.name}.{kind}") for kind in ("npy", *range(ranks.size)))
        try:
            on_all(lambda: self._write(own[ranks.rank], ranks.rank, ranks.size), ranks, "the tiles", names_rank=True)
            made = np.empty(0)
            if ranks.is_root:
                made = self._joined(whole, own)
            yield made
        except OSError as error:
            raise unwritable(out, error) from error
        finally:
            for path in (whole, own[ranks.rank]) if ranks.is_root else (own[ranks.rank],):
                path.unlink(missing_ok=True)

    def _work(self) -> list[tuple[int, Tile]]:
        return [(number, tile) for number in range(self.count) for tile in self.tiles]

    def _write(self, path: Path, rank: int, size: int) -> None:
        """Compute the tiles of a rank, one after the other."""
        path.parent.mkdir(parents=True, exist_ok=True)
        parts_of = functools.lru_cache(1)(self._parts)
        with open(path, "wb") as file:
            for number, tile in self._work()[rank::size]:
                made = self.fields(number, tile, {**parts_of(number // self.members), **self.facts(number)})
                file.write(np.ascontiguousarray(self._shown(made, tile)).tobytes())

    def _joined(self, path: Path, parts: list[Path]) -> np.ndarray:
        """Put the tiles of all ranks in their places."""
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(open(part, "rb")) for part in parts]
            place: np.ndarray = np.lib.format.open_memmap(path, "w+", self._dtype, self.shape)
            for turn, (number, tile) in enumerate(self._work()):
                if turn % len(self.tiles) == 0:  # so that memory does not hold earlier samples
                    place = np.load(path, mmap_mode="r+")
                view = place[number][self.fields.region(tile)]
                view[:] = np.fromfile(files[turn % len(files)], self._dtype, view.size).reshape(view.shape)
        return np.load(path, mmap_mode="r")

    @property
    def _dtype(self) -> np.dtype:
        return np.dtype(np.uint8 if self.spec.is_pictures or self.spec.values is None else np.float32)

    def _parts(self, index: int) -> dict[str, np.ndarray]:
        """The parts of a field, (1, ...) each, without its truth if it has inputs."""
        try:
            found = self.source.fetch_batch(np.array([index]), but="" if self.source.inputs is None else "images")
        except BadImage as error:
            raise RunError(f"--data {error}; leave the sample out of the file, or repair it") from error
        return found if self.source.constants is None else {**found, "constants": self.source.constants[None]}

    def _shown(self, made: np.ndarray, tile: Tile) -> np.ndarray:
        """A tile in the units of the data, with NaN where the data have no numbers."""
        made, missing = shown(made[None], self.spec)[0], self.source.missing
        if missing is None or missing.mask is None:
            return made
        return np.where(missing.mask[self.fields.region(tile)], np.float32(np.nan), made)
