"""The samples of any data: a store with inputs, further arrays, labels, conditions, constants and maps."""

import dataclasses
import functools
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from hvdgan.data.bad_files import BadFile, BadImage
from hvdgan.data.store import DataRequest, DerivedStore, Store
from hvdgan.errors import UserError
from hvdgan.errors.shared_errors import ALONE, Peers, on_all
from hvdgan.launching import hosts
from hvdgan.values.sample_values import Layout, Missing, SampleValues, named_arrays, of_pixels
from hvdgan.values.value_map import ValueMap

_MEMORY_FRACTION = 0.8
"""fraction of the free memory that the cache may take; the run needs the rest"""


@dataclasses.dataclass(eq=False, kw_only=True)
class Samples:
    """Samples by index, all of one shape, each with an input if there are inputs.

    Args:
        name: value of `--data`, for messages.
        images: the samples, channels last; or, if each has an input and `inputs` is None, both in one picture, of which
            the input is the first half of the channels.
        values: maps of the numbers to those that networks see.
        layout: shapes of a sample and of its input.
        fingerprint: hex digits, equal if the samples and their shapes are equal.
        inputs: inputs of the samples, channels last.
        arrays: further arrays of the samples by name, channels last.
        is_pictures: True for 8-bit pictures, whose uint8 0 to 255 the step itself maps to [-1, 1].
        labels: classes of the samples, int32 (N,), or None.
        class_names: names of the labels 0, 1, ..., or None if they are not known.
        classes: number of classes; None: one more than the largest label.
        conditions: numbers that describe each sample, (N, k), or None; their names are in `values`.
        constants: fields that all samples share, channels last, or None.
        weights: relative frequencies of the samples in training, float64 (N,); None: all are equal.
        missing: number that networks see in place of missing ones; None: a sample with one is broken.
        bad_files: files found broken on opening; they have no index.
        remarks: lines to log when a run starts, on numbers outside of a range or files that are not used.
        assumed_axes: axes that arrays are taken to have although their shape allows others, in words.
        folder: folder below which the files lie.
        paths: paths of the files, of which one has another size or time once a sample has changed, unless the
            fingerprint shows it; None: nothing shows that.
        indices: numbers of these samples in the stores, int64 (N,); None: all.
        is_mapped: True if the numbers are mapped to those that networks see.
        rate: samples of a wave per second; None: they are no waves.
        beside: samples of the other domains of a recipe that has several, by the names of these; each has its own order
            (hvdgan.data.domains).
    """

    name: str
    images: Store
    values: SampleValues
    layout: Layout
    fingerprint: str
    inputs: Store | None = None
    arrays: Mapping[str, Store] = dataclasses.field(default_factory=dict)
    is_pictures: bool = False
    labels: np.ndarray | None = None
    class_names: Sequence[str] | None = None
    classes: int | None = None
    conditions: np.ndarray | None = None
    constants: np.ndarray | None = None
    weights: np.ndarray | None = None
    missing: Missing | None = None
    bad_files: Sequence[BadFile] = ()
    remarks: Sequence[str] = ()
    assumed_axes: Sequence[str] = ()
    folder: str = ""
    paths: Sequence[str] | None = None
    indices: np.ndarray | None = None
    is_mapped: bool = False
    rate: int | None = None
    beside: Mapping[str, "Samples"] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        """The number of samples that have an index."""
        return self.images.shape[0] if self.indices is None else len(self.indices)

    @property
    def domains(self) -> dict[str, "Samples"]:
        """These samples under the name "", and those of the other domains."""
        return {"": self, **self.beside}

    @property
    def total(self) -> int:
        """The number of all samples, including broken ones and those that are held out."""
        return self.images.shape[0] + len(self.bad_files)

    @property
    def num_classes(self) -> int:
        """The number of classes; 0 if there are no labels or if one is negative, which is not a class."""
        if self.classes is not None:
            return self.classes
        return 0 if self.labels is None or self.labels.min() < 0 else int(self.labels.max()) + 1

    @property
    def paired(self) -> bool:
        """True if each sample comes with an input."""
        return self.layout.input_shape is not None

    @property
    def prepared(self) -> bool:
        """True if `hvdgan.prepare` would not make reading faster."""
        return all(store.prepared for store in self.stores.values())

    @functools.cached_property
    def stored_dtype(self) -> np.dtype:
        """The type of the numbers of samples and inputs in the data."""
        return np.result_type(self.images.dtype, (self.inputs or self.images).dtype)

    def blank(self, count: int) -> dict[str, np.ndarray]:
        """Zeros in place of what fetch_batch() returns of `count` samples."""
        shapes = {name: store.shape[1:] for name, store in self.stores.items()} | {"images": self.layout.shape}
        if self.layout.input_shape is not None:
            shapes["inputs"] = self.layout.input_shape
        found = dict[str, np.ndarray]()
        for part, shape in shapes.items():
            dtype = self.stores.get(part, self.images).dtype
            if (value_map := self._map_of(part)) is not None:
                shape, dtype = (*shape[:-1], value_map.width), np.dtype(np.float32)
            found[part] = np.zeros((count, *shape), dtype)
        return found

    def fetch(self, index: int, draws: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Read one sample; see fetch_batch()."""
        return {part: each[0] for part, each in self.fetch_batch(np.array([index]), draws).items()}

    def fetch_batch(
        self, indices: np.ndarray, draws: np.ndarray | None = None, *, but: str = ""
    ) -> dict[str, np.ndarray]:
        """Read the parts of several samples, (B, ...) each: `images`, and perhaps `inputs` and `arrays/NAME`.

        Numbers (B,) draw the parts of longer samples, as in Store.read_drawn(). `but` is a part that is not wanted.
        Safe to call from several threads. A BadImage says that one is broken.
        """
        numbers, wanted = self.numbers(indices), {part: each for part, each in self.stores.items() if part != but}
        found = {part: store.read_drawn(numbers, draws) for part, store in wanted.items()}
        if self.paired and self.inputs is None:
            found["inputs"], found["images"] = np.split(found["images"], 2, axis=-1)
        return {part: self._seen(part, stored, indices) for part, stored in found.items()}

    def facts(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """What memory holds about some samples: their numbers in the data, labels and conditions, (B, ...) each."""
        known = {"numbers": self.numbers(indices)}
        if self.labels is not None:
            known["labels"] = self.labels[indices]
        if self.conditions is not None:
            known["conditions"] = self.conditions[indices]
        return known

    def numbers(self, indices: np.ndarray) -> np.ndarray:
        """The samples' numbers in the whole data, int64 (B,); they differ from the indices where some are held out."""
        return np.asarray(indices if self.indices is None else self.indices[indices], np.int64)

    def named(self, index: int) -> str:
        """The name of a sample, for messages."""
        return self.images.named(self._number(index))

    def key(self, index: int) -> bytes:
        """Bytes that identify a sample on every machine: its name or place within the data, or its pixels."""
        return self.images.key(self._number(index))

    def digest(self, index: int) -> bytes:
        """The SHA-256 of a sample's key."""
        return self.images.digest(self._number(index))

    def stamp(self) -> list[Any] | None:
        """Facts, as JSON types, that prove with the fingerprint that no sample and no label has changed, or None."""
        if self.paths is None:
            return None
        found = (os.stat(os.path.join(self.folder, path)) for path in self.paths)
        times = "\n".join(f"{status.st_size} {status.st_mtime_ns}" for status in found)
        parts = [b"" if each is None else each.tobytes() for each in (self.indices, self.labels)]
        return [self.num_classes, fingerprint_of(times.encode(), parts)]

    def replace(self, **changes: Any) -> "Samples":
        """The same samples with other attributes."""
        return dataclasses.replace(self, **changes)

    def chosen(self, indices: np.ndarray) -> "Samples":
        """Some of the samples, int64 (N,), in this order."""
        own = {"labels": self.labels, "conditions": self.conditions, "weights": self.weights}
        some: dict[str, Any] = {name: None if each is None else each[indices] for name, each in own.items()}
        return self.replace(indices=self.numbers(indices), classes=self.num_classes, **some)

    def mapped(self, values: SampleValues) -> "Samples":
        """The samples as networks see them, by maps that have all their statistics."""
        constants = self._mapped_part(values, "constants")
        field = None if self.missing is None else self.missing.field
        if field is not None:
            constants = field if constants is None else np.concatenate([constants, field], axis=-1)
        conditions, remarks = self._mapped_part(values, "conditions"), list(self.remarks)
        known = values.conditions
        if known is not None and conditions is not None and (words := known.outside_in_words(conditions)):
            remarks.append(f"conditions: {words}")
        changes: dict[str, Any] = {"values": values, "conditions": conditions, "constants": constants}
        return self.replace(remarks=remarks, is_mapped=True, **changes)

    def described(self, numbers: np.ndarray, value_map: ValueMap, *names: str) -> "Samples":
        """The samples with conditions (N, k) float64, which the fingerprint then covers with their names."""
        parts = [self.fingerprint.encode(), *map(str.encode, names), numbers.tobytes()]
        values = dataclasses.replace(self.values, conditions=value_map)
        return self.replace(values=values, conditions=numbers, fingerprint=fingerprint_of(b"conditions", parts))

    def refuse_lost(self, part: str, value_map: ValueMap, seen: np.ndarray) -> None:
        """Refuse conditions and constants of which a map makes NaN or infinities."""

        def where(place: tuple[int, ...]) -> str:
            if part == "constants":
                return f" at {place}"
            return f" of sample {self._number(place[0])} ({self.named(place[0])})"

        if words := value_map.lost_in_words(getattr(self, part), seen, where):
            raise UserError(
                f"--data {self.name}: {words}; correct the number, or declare another map with --{part[:-1]}-values"
            )

    @property
    def stores(self) -> dict[str, Store]:
        """Those of the inputs, if there are some, of the arrays and of the images, which are read last."""
        inputs = {} if self.inputs is None else {"inputs": self.inputs}
        return {**inputs, **named_arrays(self.arrays), "images": self.images}

    def _number(self, index: int) -> int:
        return index if self.indices is None else int(self.indices[index])

    def _mapped_part(self, values: SampleValues, part: str) -> np.ndarray | None:
        """A part in memory as networks see it."""
        value_map = values.parts()[part]
        numbers: np.ndarray | None = getattr(self, part)
        if value_map is None or numbers is None:
            return numbers
        with np.errstate(all="ignore"):
            seen = value_map.forward(numbers)
        self.refuse_lost(part, value_map, seen)
        return seen

    def _map_of(self, part: str) -> ValueMap | None:
        """The map that fetch_batch() applies to a part; None if it leaves the part as it is stored."""
        is_seen = self.is_mapped and not (self.is_pictures and part in ("images", "inputs"))
        return self.values.parts()[part] if is_seen else None

    def _seen(self, part: str, stored: np.ndarray, indices: np.ndarray) -> np.ndarray:
        """A part of some samples as fetch_batch() returns it."""
        if (value_map := self._map_of(part)) is None:
            return stored
        with np.errstate(all="ignore"):
            seen = value_map.forward(stored)
        if self.missing is not None:
            seen = self.missing.filled(stored, seen)
        if not (finite := np.isfinite(seen)).all():
            first = int(np.argmin(finite.reshape(len(seen), -1).all(axis=1)))
            reason = _reason(stored[first], seen[first], value_map)
            where = f"{self.stores[part].name}: " if part in named_arrays(self.arrays) else ""
            raise BadImage(self.named(int(indices[first])), f"{where}{reason}")
        return seen


def of_pictures(
    request: DataRequest, store: Store, *, told_by: Iterable[bytes], inputs: Store | None = None, **others: Any
) -> Samples:
    """8-bit pictures, all of one size; without `inputs`, those of pairs lie in front of the images' channels."""
    shape, input_shape = store.shape[1:], None if inputs is None else inputs.shape[1:]
    if request.paired and inputs is None:
        shape = input_shape = (*shape[:2], shape[2] // 2)
    return Samples(
        name=request.config.data,
        images=store,
        inputs=inputs,
        values=of_pixels(shape[-1], paired=request.paired),
        layout=Layout(shape, input_shape),
        fingerprint=fingerprint_of(f"{shape} {request.config.fit or 'crop'}".encode(), told_by),
        is_pictures=True,
        **others,
    )


def arrays_seen(source: Samples, values: SampleValues) -> dict[str, tuple[int, ...]]:
    """The shapes of the arrays of samples as networks see them, by maps."""
    shapes = {name: source.layout.seen_of(store.shape[1:]) for name, store in source.arrays.items()}
    return {name: (*shape[:-1], values.arrays[name].width) for name, shape in shapes.items()}


def fingerprint_of(head: bytes, parts: Iterable[bytes]) -> str:
    """The SHA-256 of a head and of parts, whose boundaries count, in hex."""
    digest = hashlib.sha256(head)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def not_finite(sample: np.ndarray) -> str:
    """How many numbers of a sample are NaN or infinite, in words; an empty string if none is."""
    finite = np.isfinite(sample)
    if finite.all():
        return ""
    kinds = ["NaN"] * bool(np.isnan(sample).any()) + ["infinite"] * bool(np.isinf(sample).any())
    return f"{np.count_nonzero(~finite):,} of {sample.size:,} numbers are {' or '.join(kinds)}"


def _reason(sample: np.ndarray, seen: np.ndarray, value_map: ValueMap) -> str:
    """Why the numbers of a sample, which a map turns into those that are seen, cannot be used."""
    if not np.isfinite(sample[~np.isfinite(seen)[..., : sample.shape[-1]]]).all():
        return not_finite(sample)
    return f"channel {value_map.lost_in_words(sample, seen, lambda place: f' at {place}' if place else '')}"


def cached(source: Samples, kind: Literal["none", "memory"], peers: Peers = ALONE) -> Samples:
    """Samples of which each rank reads each once: all of them in the end, since its slices differ every epoch."""
    if kind == "none" or all(store.in_memory for store in source.stores.values()):
        return source
    on_all(lambda: _check_memory(source, peers), peers, "memory for the cache")
    kept = {part: _Kept(store) for part, store in source.stores.items()}
    arrays = {name: kept[part] for part, name in zip(named_arrays(source.arrays), source.arrays, strict=True)}
    return source.replace(images=kept["images"], inputs=kept.get("inputs"), arrays=arrays)


class _Kept(DerivedStore):
    """An array in memory; the system provides a page only when a sample is written to it."""

    in_memory = True

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._samples = np.zeros(store.shape, store.dtype)
        self._there = np.zeros(store.shape[0], bool)

    def read(self, indices: np.ndarray) -> np.ndarray:
        missing = indices[~self._there[indices]]
        if len(missing):
            self._samples[missing] = self._stored.read(missing)
            self._there[missing] = True  # last, since other threads read
        return self._samples[indices]


def _check_memory(source: Samples, peers: Peers) -> None:
    free = hosts.free_memory()
    needed = sum(each.nbytes for each in source.blank(1).values()) * len(source) * peers.local_size
    if free is None or needed <= _MEMORY_FRACTION * free:
        return
    raise UserError(
        f"--pipeline.cache memory: {len(source):,} samples of {source.layout.shape} {source.stored_dtype} take "
        f"{needed / 1e9:.3g} GB for the {peers.local_size} rank(s) of {os.uname().nodename}, where {free / 1e9:.3g} GB "
        f"are free and at most {_MEMORY_FRACTION:.0%} of that may be used; pack the data with hvdgan prepare instead"
    )
