"""Files that a command writes: never over others unasked, and complete or not there at all."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hvdgan.cli.errors import RunError, UserError
from hvdgan.cli.replacing import finish_replacing, replace_folder, whole_file


def check_file(path: Path, *, overwrite: bool, flag: str = "--out") -> None:
    """Refuse, before anything is computed, a picture that write() could not or should not write.

    Args:
        path: what the flag says.
        overwrite: whether it may be there already.
        flag: --out or another.

    Raises:
        UserError: it is no .png, is there already, or cannot be made there.
    """
    if path.suffix.lower() != ".png":
        raise UserError(f"{flag} {path}: expected a name that ends in .png; other formats would change pixels")
    check_new(path, overwrite=overwrite, flag=flag)


def check_new(path: Path, *, overwrite: bool, flag: str = "--out") -> None:
    """The same for a file of any kind, named by any flag.

    Raises:
        UserError: it is there already, or cannot be made there.
    """
    _check_place(path, flag)
    if path.is_dir():
        raise UserError(f"{flag} {path}: is a folder; expected the name of a file")
    if path.exists() and not overwrite:
        raise UserError(f"{flag} {path}: is there already; name another, or give --overwrite")


def check_folder(path: Path, *, overwrite: bool) -> None:
    """The same for a folder of pictures.

    Raises:
        UserError: it is a file, holds something already, or cannot be made there.
    """
    _check_place(path)
    if path.exists() and not path.is_dir():
        raise UserError(f"--out {path}: is a file; expected a folder")
    if not overwrite and path.exists() and any(path.iterdir()):
        raise UserError(f"--out {path}: holds files already; name another, or give --overwrite")


def check_new_folder(path: Path, *, overwrite: bool, holds: str) -> None:
    """The same for a folder that is written as a whole.

    Args:
        path: what --out says.
        overwrite: whether it may be there already.
        holds: a file that tells such a folder from others, which are never removed.

    Raises:
        UserError: it is there already, is something else, or cannot be made there.
    """
    check_folder(path, overwrite=overwrite)
    if path.exists() and any(path.iterdir()) and not (path / holds).is_file():
        raise UserError(f"--out {path}: holds other files, which --overwrite would remove; name another")


def _check_place(path: Path, flag: str = "--out") -> None:
    try:
        path.exists()
        parent = next(parent for parent in path.absolute().parents if parent.exists())
    except OSError as error:
        raise UserError(f"{flag} {path}: {error.strerror}") from error
    if not parent.is_dir():
        raise UserError(f"{flag} {path}: {parent} is a file; expected a folder")


def write(path: Path, save: Callable[[Path], None]) -> None:
    """Write a file under another name, and rename it when it is whole.

    Args:
        path: name of the file; its folder is made.
        save: function that writes the file to a path with the same suffix.

    Raises:
        RunError: the file cannot be written; a file that had its name is untouched.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as partial:
            save(partial)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error}") from error


def write_json(path: Path, value: Any, indent: int = 1) -> None:
    """Write what is expressible in JSON, as write() does."""

    def save(partial: Path) -> None:
        partial.write_text(json.dumps(value, indent=indent) + "\n", encoding="utf-8")

    write(path, save)


def write_folder(path: Path, save: Callable[[Path], None]) -> None:
    """Write a folder under another name, and give it its own when it is whole; what has that is removed then.

    Args:
        path: of the folder; its parents are made.
        save: makes and fills the folder it is given.

    Raises:
        RunError: it cannot be written; what was there before is untouched.
    """
    partial, old = (path.with_name(f".{path.name}.{state}") for state in ("partial", "old"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        finish_replacing(path, old)  # of a write that was cut off
        shutil.rmtree(partial, ignore_errors=True)
        try:
            save(partial)
            replace_folder(partial, path, old)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error}") from error
