"""Writes samples as files: pictures, or arrays in the units of the data with the conditions they were drawn for."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from hvdgan.cli.errors import UserError
from hvdgan.cli.files import outputs
from hvdgan.recipe import DataSpec
from hvdgan.recipe.drawing import Input
from hvdgan.recipe.showing import save_samples

ARRAYS = (".npy", ".npz", ".h5", ".hdf5")


def check(path: Path, *, separate: bool, overwrite: bool) -> None:
    """Refuse an output that write() could not write, before anything is computed.

    Raises:
        UserError: its name has another ending, it exists, or it cannot be made.
    """
    if separate:
        outputs.check_folder(path, overwrite=overwrite)
    elif path.suffix.lower() in ARRAYS:
        outputs.check_new(path, overwrite=overwrite)
    elif path.suffix.lower() == ".png":
        outputs.check_file(path, overwrite=overwrite)
    else:
        raise UserError(
            f"--out {path}: expected a name that ends in .png for a picture, or in {', '.join(ARRAYS)} for numbers"
        )


def write(path: Path, samples: np.ndarray, spec: DataSpec, inputs: Sequence[Input], *, of_data: bool = False) -> None:
    """Write samples to one file.

    Args:
        path: name of the file: a PNG, or an array; .npz and .h5 also hold the conditions, by their names, `index`, and
            the units and names of channels as hvdgan reads them: attributes, or arrays of text such as `samples_units`.
        samples: samples in the units of the data, (N, ...).
        spec: facts about the data.
        inputs: inputs that each sample was drawn from.
        of_data: True if these are samples of the data, whose numbers in the data are the array `index`.
    """
    suffix = path.suffix.lower()
    if suffix == ".png":
        outputs.write(path, lambda partial: save_samples(partial, samples, spec))
    elif suffix == ".npy":
        outputs.write(path, lambda partial: np.save(partial, samples))
    else:
        arrays = {"samples": samples, **_conditions(spec, inputs)}
        if of_data:
            arrays["index"] = np.array([each["numbers"] for each in inputs], np.int64)
        texts = _texts(spec, arrays)
        save = _save_npz if suffix == ".npz" else _save_hdf5
        outputs.write(path, lambda partial: save(partial, arrays, texts))


def _conditions(spec: DataSpec, inputs: Sequence[Input]) -> dict[str, np.ndarray]:
    """The conditions in the units of the data, by name."""
    value_map = None if spec.values is None else spec.values.conditions
    if value_map is None or not inputs or "conditions" not in inputs[0]:
        return {}
    numbers = value_map.inverse(np.stack([each["conditions"] for each in inputs]))
    return {name: numbers[:, place] for place, name in enumerate(spec.conditions)}


def _texts(spec: DataSpec, names: Iterable[str]) -> dict[str, dict[str, list[str]]]:
    """The units of arrays, one for each channel, and the names of their channels, where the data gave some."""
    found: dict[str, dict[str, list[str]]] = {name: {} for name in names}
    if spec.values is None:
        return found
    images, given = spec.values.images, spec.values.conditions
    if any(images.units):
        found["samples"]["units"] = list(images.units)
    if not all(map(str.isdecimal, images.channels)):
        found["samples"]["channels"] = list(images.channels)
    for name, unit in zip(given.channels, given.units, strict=False) if given is not None else ():
        if unit and name in found:
            found[name]["units"] = [unit]
    return found


def _save_npz(path: Path, arrays: dict[str, np.ndarray], texts: dict[str, dict[str, list[str]]]) -> None:
    beside = {f"{name}_{kind}": np.array(each) for name, kinds in texts.items() for kind, each in kinds.items()}
    np.savez(path, **{**beside, **arrays})  # type: ignore[arg-type]  # a name is never allow_pickle


def _save_hdf5(path: Path, arrays: dict[str, np.ndarray], texts: dict[str, dict[str, list[str]]]) -> None:
    import h5py  # only for this kind of file

    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            written = file.create_dataset(name, data=array)
            for kind, each in texts[name].items():
                written.attrs[kind] = each[0] if len(each) == 1 else each  # one text, as other programs expect
