"""Writes samples as files: pictures, or arrays in the units of the data with the conditions they were drawn for."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hvdgan.cli.errors import UserError
from hvdgan.cli.files import outputs
from hvdgan.recipe import DataSpec
from hvdgan.recipe.drawing import Input
from hvdgan.recipe.showing import save_samples

ARRAYS = (".npy", ".npz", ".h5", ".hdf5")
Texts = dict[str, dict[str, list[str]]]


def check(path: Path, *, separate: bool, overwrite: bool) -> None:
    """Refuse an output that write() could not write, before anything is computed."""
    if separate:
        outputs.check_folder(path, overwrite=overwrite)
    elif path.suffix.lower() in (".png", *ARRAYS):
        outputs.check_new(path, overwrite=overwrite)
    else:
        raise UserError(
            f"--out {path}: expected a name that ends in .png for a picture, or in {', '.join(ARRAYS)} for numbers"
        )


def write(path: Path, samples: np.ndarray, spec: DataSpec, inputs: Sequence[Input], *, of_data: bool = False) -> None:
    """Write samples (N, ...) in the units of the data to one file: a PNG, or an array.

    An .npz and an .h5 also hold the conditions of their inputs by name, the units and names of channels as hvdgan reads
    them (attributes, or arrays of text such as `samples_units`), and `index`, the numbers in the data of samples of it.
    """
    suffix = path.suffix.lower()
    if suffix == ".png":
        outputs.write(path, lambda partial: save_samples(partial, samples, spec))
        return
    if suffix == ".npy":
        outputs.write(path, lambda partial: np.save(partial, samples))
        return
    arrays, texts = {"samples": samples}, Texts()
    if spec.values is not None:
        images, given = spec.values.images, spec.values.conditions
        named = not all(map(str.isdecimal, images.channels))
        texts["samples"] = {"units": list(images.units), "channels": list(images.channels) if named else []}
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
