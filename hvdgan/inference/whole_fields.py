"""Draws whole fields over all ranks: each computes tiles of its own, and rank 0 puts them together on the disk."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from hvdgan.data import BadImage, Samples
from hvdgan.distributed.ranks import Ranks
from hvdgan.errors import RunError, unwritable
from hvdgan.errors.shared_errors import on_all
from hvdgan.inference.tiles import Tile, WholeFields
from hvdgan.recipe import DataSpec
from hvdgan.recipe.display import shown
from hvdgan.recipe.sampling import Input
from hvdgan.values.sample_values import Shape


@dataclasses.dataclass(frozen=True)
class FieldDrawing:
    """Samples of whole fields, in the order of the data; sample n starts from field n // members.

    `conditions` (N, k) replace those of the data, in turn.
    """

    fields: WholeFields
    source: Samples
    spec: DataSpec
    pixels: int  # height and width of a tile
    count: int
    members: int = 1
    conditions: np.ndarray | None = None

    @property
    def shape(self) -> Shape:
        return (self.count, *self.source.layout.shape[:-1], self.spec.channels)

    @functools.cached_property
    def tiles(self) -> list[Tile]:
        return self.fields.tiles(self.shape[1:-1], self.pixels)

    def facts(self, number: int) -> Input:
        """What describes the field from which a sample starts, (1, ...) each."""
        found = self.source.facts(np.array([index := number // self.members]))
        if self.conditions is not None:
            found["conditions"] = self.conditions[[index % len(self.conditions)]]
        return found

    @contextlib.contextmanager
    def drawn(self, out: Path, ranks: Ranks) -> Iterator[np.ndarray]:
        """The samples (N, *space, C) in the units of the data, in a file next to `out`, on rank 0.

        Each rank writes its tiles to a file of its own: two hosts do not write to one file of a network file system.
        All these files are gone after the block.
        """
        whole, *own = (out.with_name(f".{out.name}.{kind}") for kind in ("npy", *range(ranks.size)))
        try:
            write = functools.partial(self._write, own[ranks.rank], ranks.rank, ranks.size)
            on_all(write, ranks, "the tiles", names_rank=True)
            yield self._joined(whole, own) if ranks.is_root else np.empty(0)
        except OSError as error:
            raise unwritable(out, error) from error
        finally:
            for path in [own[ranks.rank]] + [whole] * ranks.is_root:
                path.unlink(missing_ok=True)

    def part(self, number: int, tile: Tile) -> np.ndarray:
        """A tile of a sample in the units of the data, with NaN where the data have no numbers."""
        made = self.fields(number, tile, {**self._given(number // self.members), **self.facts(number)})
        return self.known(shown(made[None], self.spec)[0], tile.region)

    def known(self, numbers: np.ndarray, region: Any = ...) -> np.ndarray:
        """The numbers of a region of a field, by default of all of it, with NaN where the data have none."""
        missing = self.source.missing
        if missing is None or missing.mask is None:
            return numbers
        return np.where(missing.mask[region], np.float32(np.nan), numbers)

    def _work(self) -> list[tuple[int, Tile]]:
        return [(number, tile) for number in range(self.count) for tile in self.tiles]

    def _write(self, path: Path, rank: int, size: int) -> None:
        """Compute the tiles of a rank, one after the other."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as file:
            work = self._work()[rank::size]
            with tile_bar(len(work), rank) as bar:
                for number, tile in work:
                    np.ascontiguousarray(self.part(number, tile)).tofile(file)
                    bar.update()

    def _joined(self, path: Path, parts: list[Path]) -> np.ndarray:
        """Put the tiles of all ranks in their places."""
        dtype = np.dtype(np.uint8 if self.spec.is_pictures or self.spec.values is None else np.float32)
        place: np.ndarray = np.lib.format.open_memmap(path, "w+", dtype, self.shape)
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(open(part, "rb")) for part in parts]
            for turn, (number, tile) in enumerate(self._work()):
                if turn % len(self.tiles) == 0:  # so that memory does not hold earlier samples
                    place = np.load(path, mmap_mode="r+")
                view = place[number][tile.region]
                view[:] = np.fromfile(files[turn % len(files)], dtype, view.size).reshape(view.shape)
        return place

    @functools.cached_property
    def _given(self) -> Callable[[int], dict[str, np.ndarray]]:
        """What returns the parts of a field, (1, ...) each, without its truth if it has inputs; it keeps the last."""

        def read(index: int) -> dict[str, np.ndarray]:
            found = self.read(index, but="" if self.source.inputs is None else "images")
            return found if self.source.constants is None else {**found, "constants": self.source.constants[None]}

        return functools.lru_cache(1)(read)

    def read(self, index: int, *, but: str = "") -> dict[str, np.ndarray]:
        """The stored parts of a field, as Samples.fetch_batch() returns them."""
        try:
            return self.source.fetch_batch(np.array([index]), but=but)
        except BadImage as error:
            raise RunError(f"--data {error}; leave the sample out of the file, or repair it") from error


def tile_bar(total: int, rank: int) -> tqdm:
    """The progress of this number of tiles, on the terminal of rank 0; other ranks have about as many."""
    return tqdm(total=total, unit=" tiles", leave=False, dynamic_ncols=True, disable=True if rank else None)
