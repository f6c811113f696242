"""A source of the arrays in packed shards, with the numbers, shapes and types that were packed."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hvdgan.cli.config import Config
from hvdgan.cli.errors import UserError
from hvdgan.cli.shared_errors import ALONE, Peers, on_all
from hvdgan.data.arrays import conditions
from hvdgan.data.arrays.kinds import map_of, spread
from hvdgan.data.arrays.numpy_files import NumpyArray
from hvdgan.data.arrays.stored import Stored
from hvdgan.data.base.source import Source, fingerprint_of
from hvdgan.data.formats.array_records import ArrayRecords
from hvdgan.data.formats.manifest import CONDITIONS, CONSTANTS
from hvdgan.data.formats.shard_reader import ShardReader
from hvdgan.data.sources.array_files import refuse_picture_flags
from hvdgan.values.sample_values import Layout, SampleValues
from hvdgan.values.value_map import ValueMap

_AS_PACKED = ("axes", "inputs", "input_axes", "constants")
"""settings that prepare has already applied"""


class PackedArrays(Source):
    """The samples of a folder that hvdgan.prepare made of arrays, as they were stored.

    The maps of the numbers are those of the run, not of the folder. Memory holds 16 bytes, a label and the chosen
    conditions per sample. The fingerprint covers all that was packed.

    Args:
        files: the shards.
        config: settings of the data.
        paired: True if each sample must come with an input.
        peers: the ranks that open the folder together.

    Raises:
        UserError: a setting is not that of the folder, a map is unclear, or only one of the recipe and the folder has
            inputs.
    """

    batched = prepared = True

    def __init__(self, files: ShardReader, config: Config, *, paired: bool, peers: Peers = ALONE) -> None:
        manifest, self._files = files.manifest, files
        _refuse_others(config, manifest, paired)
        own = tuple(manifest["shape"]), np.dtype(manifest["dtype"])
        inputs = None
        if paired:
            inputs = tuple(manifest["input_shape"]), np.dtype(manifest["input_dtype"])
        refuse_picture_flags(config, own[0])
        self._records = ArrayRecords(files, own, inputs, manifest["encoding"])
        labels, numbers, constants = on_all(
            lambda: (files.labels(), files.array(CONDITIONS), files.array(CONSTANTS)), peers, f"--data {config.data}"
        )
        maps = _maps(config, manifest, on_all(self._sample, peers, f"--data {config.data}: some samples"))
        chosen = None
        if config.arrays.conditions and config.arrays.condition_table is None:
            chosen, maps["conditions"] = conditions.of_manifest(config, manifest, numbers)
        if constants is not None:
            maps["constants"] = _map_of_constants(config, manifest, constants)
        parts = [*files.checksums(), *(b"" if each is None else each.tobytes() for each in (labels, chosen, constants))]
        super().__init__(
            name=config.data,
            layout=Layout(own[0], None if inputs is None else inputs[0]),
            fingerprint=fingerprint_of(b"packed arrays", parts),
            dtype=own[1].newbyteorder("=") if inputs is None else np.result_type(inputs[1], own[1]),
            values=SampleValues(**maps),
            labels=labels,
            class_names=manifest["class_names"],
            conditions=chosen,
            constants=constants,
        )

    def __len__(self) -> int:
        return len(self._files)

    def fetch_batch(self, indices: np.ndarray) -> np.ndarray:
        arrays = self._records.read(indices)
        return arrays[0] if len(arrays) == 1 else self.layout.joined(arrays[0], arrays[1], self.dtype)

    def key(self, index: int) -> bytes:
        return self._files.key(index)

    def digest(self, index: int) -> bytes:
        return self._files.digest(index)

    def stamp(self) -> list[Any] | None:
        return self._files.stamp()

    def _sample(self) -> list[np.ndarray]:
        return self._records.read(spread(len(self._files)))


class _Part(Stored):
    """The samples or the inputs, as far as their map depends on them."""

    def read(self, indices: np.ndarray) -> np.ndarray:
        raise NotImplementedError


def _refuse_others(config: Config, manifest: dict[str, Any], paired: bool) -> None:
    """Refuse settings that are not those with which the folder was made."""
    if bool(manifest["pairs"]) != paired:
        both = ("samples with inputs", "single samples"), ("single samples", "samples with inputs")
        stored, asked = both[0] if manifest["pairs"] else both[1]
        raise UserError(
            f"--data {config.data}: its shards hold {stored}, and this recipe takes {asked}; prepare them again with "
            f"python -m hvdgan.prepare {'without' if manifest['pairs'] else 'with'} --pairs"
        )
    for name in _AS_PACKED:
        given, packed = getattr(config.arrays, name), manifest["settings"].get(name)
        if given not in (None, packed):
            flag = f"--{name.replace('_', '-')}"
            how = f"with {flag} {packed}" if packed else f"without {flag}"
            raise UserError(f"{flag} {given}: the shards of {config.data} were packed {how}; leave the flag out")


def _maps(config: Config, manifest: dict[str, Any], samples: Sequence[np.ndarray]) -> dict[str, ValueMap]:
    """The maps of the samples and of the inputs, by the same rules as for arrays in other files."""
    settings = config.arrays
    flags = {
        "images": (settings.values, "--values", ""),
        "inputs": (settings.input_values, "--input-values", "input_"),
    }
    maps = {}
    for part, sample in zip(("inputs", "images")[-len(samples) :], samples, strict=True):
        given, flag, prefix = flags[part]
        shape = (manifest["count"], *sample.shape[1:])
        stored = _Part(config.data, shape, sample.dtype, units=manifest[f"{prefix}units"])
        channels = manifest[f"{prefix}channel_names"]
        maps[part] = map_of(given, stored, sample, flag=flag, channels=channels)
    return maps


def _map_of_constants(config: Config, manifest: dict[str, Any], fields: np.ndarray) -> ValueMap:
    stored = NumpyArray(config.data, fields)
    stored.units = tuple(manifest["constant_units"])
    names = manifest["constant_names"]
    return map_of(config.arrays.constant_values, stored, fields[None], flag="--constant-values", channels=names)
