"""Opens the samples that `--data` names."""

import dataclasses
import os
from pathlib import Path

from hvdgan.cli.config import Config
from hvdgan.cli.errors import UserError
from hvdgan.cli.shared_errors import ALONE, Peers
from hvdgan.data import conditions
from hvdgan.data.arrays import open_arrays, without_maps
from hvdgan.data.builtin import digits, of_keras, synthetic, with_outlines
from hvdgan.data.pictures import open_pictures
from hvdgan.data.records import files_named, open_records
from hvdgan.data.samples import Samples
from hvdgan.values.sample_values import Layout

_SIZE = 32
"""default height and width of pictures"""
EXPECTED = (
    "digits, synthetic, a folder or a .zip of images, a folder of .npy files or of packed files, arrays (.npy, .npz, "
    ".h5, .nc, .zarr; FILE:NAME for one of several, 'data/*.h5:NAME' for many files), TFRecord files (a path, or a "
    "pattern in quotes such as 'data/*.tfrecord'), keras:mnist and the like, or your own as my_module:source"
)


def open_source(
    config: Config,
    *,
    paired: bool = False,
    peers: Peers = ALONE,
    unmapped: bool = False,
    in_order: bool = False,
) -> Samples:
    """Open what `--data` names.

    `digits` and `synthetic` are words; a folder of that name is opened as `./digits`.

    Args:
        config: settings of the data.
        paired: True if each sample must come with an input. Pairs of a folder: see PictureFiles; of arrays: see
            hvdgan.data.arrays; of TFRecords: see hvdgan.data.records; all other pictures have their
            outlines as inputs.
        peers: the ranks; each calls this, and they share the work.
        unmapped: True if the maps of another run apply: arrays need none then, and get `none`.
        in_order: True if one thread reads the samples in ascending order, as hvdgan.prepare does; TFRecord files may be
            compressed as a whole then.

    Raises:
        UserError: the data do not exist, hold no samples, are unclear, or too many are broken.
        RunError: the ranks do not see the same files.
    """
    source = _with_table(_opened(config, paired, peers, unmapped, in_order), config)
    if source.is_pictures and not unmapped:
        refuse_array_flags(source, config)
    if config.arrays.crop:
        return source.replace(layout=_cropped(source, config.arrays.crop))
    return source


def _opened(config: Config, paired: bool, peers: Peers, unmapped: bool, in_order: bool) -> Samples:
    size, channels, fit = config.image_size or _SIZE, config.channels, config.fit
    kind = config.data.partition(":")[0]
    if config.data in ("digits", "synthetic") or kind == "keras":
        if config.data == "digits":
            made = digits(image_size=size, channels=channels or 1, fit=fit)
        elif config.data == "synthetic":
            made = synthetic(image_size=size, channels=channels or 3)
        else:
            made = of_keras(config.data, image_size=size, channels=channels, fit=fit, peers=peers)
        return with_outlines(made, size) if paired else made
    try:
        opened = _open_files(config, paired, peers, unmapped, in_order)
        problem = "of no known kind" if os.path.exists(config.data) else "no such file or folder"
    except OSError as error:
        opened, problem = None, str(error.strerror)
    if opened is None:
        raise UserError(f"--data {config.data}: {problem}; expected {EXPECTED}")
    return opened


def _open_files(config: Config, paired: bool, peers: Peers, unmapped: bool, in_order: bool) -> Samples | None:
    """The source at a path; None if the path does not exist or is of an unknown kind."""
    data, size, channels, fit = config.data, config.image_size or _SIZE, config.channels, config.fit
    path, settings = Path(data), without_maps(config) if unmapped else config
    if (arrays := open_arrays(config, paired=paired, peers=peers, unmapped=unmapped)) is not None:
        return arrays
    if data and (path.is_dir() or (data.lower().endswith(".zip") and path.is_file())):
        return open_pictures(
            data,
            image_size=size,
            channels=channels or 3,
            fit=fit,
            max_bad_fraction=config.max_bad_fraction,
            paired=paired,
            peers=peers,
        )
    if not (files := files_named(data)):
        return None
    return open_records(settings, files, paired=paired, size=size, peers=peers, in_order=in_order)


def _with_table(source: Samples, config: Config) -> Samples:
    """The source with the conditions of --condition-table, if there is one."""
    settings = config.arrays
    if settings.condition_table is None:
        if settings.conditions and source.conditions is None:
            raise UserError(f"--conditions {','.join(settings.conditions)}: name their file with --condition-table")
        if settings.condition_values is not None and source.conditions is None:
            raise UserError("--condition-values: there are no conditions; name them with --conditions")
        return source
    numbers, names, unused = conditions.of_table(settings.condition_table, settings.conditions, source)
    value_map = conditions.map_of(settings.condition_values, names)
    return source.described(numbers, value_map, *names).replace(remarks=[*source.remarks, *filter(None, [unused])])


def refuse_array_flags(source: Samples, config: Config) -> None:
    """Refuse flags of arrays for pictures, on which they would have no effect."""
    settings = config.arrays
    for name in ("values", "axes", "inputs", "input_values", "input_axes", "constants", "constant_values", "missing"):
        if getattr(settings, name) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise UserError(
                f"{flag} {getattr(settings, name)}: is for arrays, and {source.name} holds 8-bit pictures, whose 0 to "
                "255 becomes [-1, 1]; leave the flag out"
            )


def _cropped(source: Samples, crop: tuple[int, ...]) -> Layout:
    """The layout with a crop that fits."""
    layout = dataclasses.replace(source.layout, crop=crop)
    space, named = layout.shape[:-1], f"--crop {','.join(map(str, crop))}"
    if len(crop) != len(space) or any(part > size for part, size in zip(crop, space, strict=False)):
        raise UserError(f"{named}: the samples have shape {layout.shape}; expected {len(space)} lengths up to {space}")
    inputs = (layout.input_shape or layout.shape)[:-1]
    if len(inputs) != len(space) or any(mine % its for mine, its in zip(space, inputs, strict=False)):
        raise UserError(f"{named}: a sample {space} is no multiple of its input {inputs}; leave the flag out")
    if any(part % factor for part, factor in zip(crop, layout.factors, strict=True)):
        raise UserError(f"{named}: a sample is {layout.factors} times its input; expected multiples of that")
    return layout
