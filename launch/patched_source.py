"""Unpack a package's source and apply patches, with the standard library alone: git and patch may not be installed.

    python launch/patched_source.py horovod-0.28.1.tar.gz launch/patches FOLDER

The archive holds one folder, whose content becomes FOLDER. The patches (*.patch: a comment, then a unified diff) are
applied in the order of their names, each to what those before it have left. Every line that a patch expects must be
where the patch says.
"""

import re
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@")


def main(archive: Path, patches: Path, folder: Path) -> None:
    """Unpack the archive and apply all patches."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        with tarfile.open(archive) as opened:
            opened.extractall(scratch)
        (top,) = Path(scratch).iterdir()
        shutil.move(top, folder)
    for patch in sorted(patches.glob("*.patch")):
        changed = apply(patch, folder)
        print(f"{patch.name}: {', '.join(changed)}")


def apply(patch: Path, folder: Path) -> list[str]:
    """Apply one patch to the files of folder.

    Returns:
        The names of the changed files.

    Raises:
        SystemExit: the patch changes nothing, or does not fit.
    """
    lines = patch.read_text().splitlines(keepends=True)
    changed: list[str] = []
    at, shift = 0, 0
    while at < len(lines):
        if lines[at].startswith("--- a/") and at + 1 < len(lines) and lines[at + 1].startswith("+++ b/"):
            changed.append(lines[at + 1][len("+++ b/") :].split("\t")[0].rstrip("\n"))
            at, shift = at + 2, 0
        elif changed and (found := _HUNK.match(lines[at])):
            first, *counts = (1 if number is None else int(number) for number in found.groups())
            old, new, at = _hunk(lines, at + 1, *counts)
            where = f"{patch.name} does not fit: {changed[-1]}, line {first}"
            _replace(folder / changed[-1], first - 1 + shift, old, new, where)
            shift += len(new) - len(old)
        else:
            at += 1
    if not changed:
        raise SystemExit(
            f"error: {patch.name} changes no file; expected a unified diff with a/ and b/ before its paths"
        )
    return changed


def _hunk(lines: list[str], at: int, old_count: int, new_count: int) -> tuple[list[str], list[str], int]:
    """The lines that a hunk expects, those that it leaves, and where it ends."""
    old: list[str] = []
    new: list[str] = []
    while at < len(lines) and (len(old) < old_count or len(new) < new_count):
        # An editor may have taken the space from an empty line of context.
        sign, text = (lines[at][0], lines[at][1:]) if lines[at] != "\n" else (" ", "\n")
        if sign in " -":
            old.append(text)
        if sign in " +":
            new.append(text)
        at += 1
    return old, new, at


def _replace(path: Path, first: int, old: list[str], new: list[str], where: str) -> None:
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    if lines[first : first + len(old)] != old:
        raise SystemExit(f"error: {where}: the source differs there from what the patch expects")
    path.write_text("".join([*lines[:first], *new, *lines[first + len(old) :]]))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
