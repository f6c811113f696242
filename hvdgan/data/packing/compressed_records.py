"""Unpacks TFRecord files that are compressed as a whole, so that each record is read alone, without another library."""

import dataclasses
import glob
import gzip
import json
import os
import shutil
import sys
import zlib
from pathlib import Path

from hvdgan.cli.config import Config
from hvdgan.cli.errors import RunError, UserError
from hvdgan.cli.files.replacing import whole_file
from hvdgan.data.base.scan_cache import identity
from hvdgan.data.base.source import printable
from hvdgan.data.packing.archives import unpacker
from hvdgan.data.records import files_named

_FOLDER = "unpacked"
_BLOCK = 2**20


def unpacked(config: Config, work: Path) -> tuple[Config, bytes]:
    """The settings with the unpacked files in place of the compressed ones that SRC names.

    Each file is unpacked once, also if the command is killed and given again. The records keep their names.

    Args:
        config: settings of the data.
        work: folder for the unpacked files, which exists until DST is finished.

    Returns:
        The settings, unchanged if no TFRecord file is compressed; and bytes that change with the compressed files.

    Raises:
        UserError: a file is damaged.
        RunError: the unpacked files cannot be written.
    """
    files = files_named(config.data)
    compressed = [file for file in files if unpacker(Path(file)) is gzip.open]
    if not compressed:
        return config, b""
    print(f"hvdgan: unpacks {len(compressed)} GZIP files of records into {work / _FOLDER}", file=sys.stderr, flush=True)
    for number, file in enumerate(files):
        target = work / _FOLDER / f"{number:05d}" / os.path.basename(file)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            if file in compressed:
                _unpack(file, target)
            else:
                target.symlink_to(Path(file).absolute())
    every = os.path.join(glob.escape(str(work / _FOLDER)), "*", "*")
    return dataclasses.replace(config, data=every), json.dumps([identity(file) for file in files]).encode()


def _unpack(file: str, target: Path) -> None:
    try:
        with gzip.open(file, "rb") as packed, whole_file(target, target.with_suffix(".partial")) as partial:
            try:
                with partial.open("wb") as plain:
                    shutil.copyfileobj(packed, plain, _BLOCK)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise UserError(f"{printable(file)}: damaged: {error}; restore it, or leave it out") from error
    except OSError as error:
        raise RunError(
            f"{printable(file)} cannot be unpacked to {target}: {error.strerror or error}; free space or correct "
            "permissions, then give the same command again"
        ) from error
