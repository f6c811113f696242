"""Writes the files of a command: whole or not at all, and over existing ones only with --overwrite."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hvdgan.errors import RunError, UserError
from hvdgan.files.replacing import own_partial, whole_file


def check_new(path: Path, *, overwrite: bool, flag: str = "--out") -> None:
    """Refuse a file that write() could not write, or would write over another, before anything is computed."""
    _check_place(path, flag)
    if path.is_dir():
        raise UserError(f"{flag} {path}: is a folder; expected the name of a file")
    if path.exists() and not overwrite:
        raise UserError(f"{flag} {path}: exists already; name another, or give --overwrite")


def check_folder(path: Path, *, overwrite: bool) -> None:
    """Do the same for a folder of pictures."""
    _check_place(path)
    if path.exists() and not path.is_dir():
        raise UserError(f"--out {path}: is a file; expected a folder")
    if not overwrite and path.exists() and any(path.iterdir()):
        raise UserError(f"--out {path}: holds files already; name another, or give --overwrite")


def check_new_folder(path: Path, *, overwrite: bool, holds: str) -> None:
    """Do the same for a folder that is written as a whole; one without the file `holds` is never removed."""
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


def write(path: Path, save: Callable[[Path], Any], *, shared: bool = False) -> None:
    """Write a file under another name with the same suffix, by `save`, and rename it when it is whole.

    `shared`: other processes may write it at the same time; the last one whose file is whole replaces it. After a
    RunError the file is what it was.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path, own_partial(path) if shared else None) as partial:
            save(partial)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error}") from error


def write_text(path: Path, text: str, *, shared: bool = False) -> None:
    """Write a text in UTF-8, as write() does."""
    write(path, lambda partial: partial.write_text(text, encoding="utf-8"), shared=shared)


def write_json(path: Path, value: Any, indent: int = 1) -> None:
    """Write a value as JSON, as write() does."""
    write_text(path, json.dumps(value, indent=indent) + "\n")


def write_folder(path: Path, save: Callable[[Path], None]) -> None:
    """Write a folder under another name, and rename it when it is whole; a folder that had the name is removed.

    If the new one cannot be written, the folder is what it was. A crash between two renames leaves it as .NAME.old.
    """
    partial, old = (path.with_name(f".{path.name}.{kind}") for kind in ("partial", "old"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)
        save(partial)
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)
            path.rename(old)
        partial.rename(path)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
