"""Writes samples in the units of the data: a picture, a wave, or arrays with what describes them."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from hvdgan.errors import UserError
from hvdgan.files import outputs
from hvdgan.files.wav import save_wav
from hvdgan.recipe import DataSpec
from hvdgan.recipe.display import save_samples
from hvdgan.recipe.sampling import Input, as_written

Texts = dict[str, dict[str, list[str]]]
"""units and names of channels of each array"""


def write_samples(
    path: Path, made: Mapping[str, np.ndarray], spec: DataSpec, inputs: Sequence[Input], *, of_data: bool = False
) -> None:
    """Write samples (N, ...) in the units of the data to one file: a PNG, or arrays.

    An .npz and an .h5 have `samples`, or each array by its name if sample() makes several, of which an .npy can hold
    none but one. They also hold the conditions of their inputs by name, the units and names of channels as hvdgan reads
    them (attributes, or arrays of text such as `samples_units`), and `index`, the numbers in the data of samples of it.
    """
    suffix = path.suffix.lower()
    if suffix == ".png":
        outputs.write(path, lambda partial: save_samples(partial, made, spec))
        return
    if suffix == ".wav" and spec.rate:
        outputs.write(path, functools.partial(save_wav, samples=np.concatenate(made["images"]), rate=spec.rate))
        return
    if suffix == ".npy":
        if len(made) > 1:
            raise UserError(f"--out {path}: holds one array, and sample() makes {', '.join(made)}; name an .npz or .h5")
        outputs.write(path, lambda partial: np.save(partial, made["images"]))
        return
    arrays, texts = as_written(made), Texts()
    if spec.values is not None:
        given, maps = spec.values.conditions, {**spec.values.arrays, next(iter(arrays)): spec.values.images}
        for name, each in maps.items():
            named = name in arrays and not all(map(str.isdecimal, each.channels))
            texts[name] = {"units": list(each.units), "channels": list(each.channels) if named else []}
        if given is not None and inputs and "conditions" in inputs[0]:
            numbers = given.inverse(np.stack([each["conditions"] for each in inputs]))
            arrays |= dict(zip(spec.conditions, numbers.T, strict=True))
            texts |= {name: {"units": [unit]} for name, unit in zip(given.channels, given.units, strict=False)}
    if of_data:
        arrays["index"] = np.array([each["numbers"] for each in inputs], np.int64)
    save = _save_npz if suffix == ".npz" else _save_hdf5
    outputs.write(path, lambda partial: save(partial, arrays, texts))


def _save_npz(path: Path, arrays: dict[str, np.ndarray], texts: Texts) -> None:
    beside = {
        f"{name}_{kind}": np.array(each) for name, kinds in texts.items() for kind, each in kinds.items() if any(each)
    }
    np.savez(path, **{**beside, **arrays})  # type: ignore[arg-type]  # a name is never allow_pickle


def _save_hdf5(path: Path, arrays: dict[str, np.ndarray], texts: Texts) -> None:
    import h5py  # only for this kind of file

    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            written = file.create_dataset(name, data=array)
            for kind, each in texts.get(name, {}).items():
                if any(each):  # one text, as other programs expect
                    written.attrs[kind] = each[0] if len(each) == 1 else each
