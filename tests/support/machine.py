"""A machine of made-up programs: shell scripts on the PATH, which keep how they are called."""

import os
import subprocess
from pathlib import Path

from launching import Done, environment

_NOTE = 'note() { printf "%s\\0" "$@" >>"$HVDGAN_NOTES"; printf "\\n" >>"$HVDGAN_NOTES"; }'


class Machine:
    """Programs in front of those of the PATH, or instead of them.

    Args:
        folder: folder for the programs, in which commands run.
        alone: whether there are no other programs.
    """

    def __init__(self, folder: Path, *, alone: bool = False) -> None:
        self.folder, self.bin, self._notes = folder, folder / "bin", folder / "notes"
        self._real = {"PATH": "", "LC_ALL": "C"} if alone else environment()
        self._real.pop("CUDA_VISIBLE_DEVICES", None)
        self.bin.mkdir()

    def has(self, **programs: str) -> None:
        """Write shell scripts, by name; `note` in them keeps words for called()."""
        for name, script in programs.items():
            (self.bin / name).write_text(f"#!/bin/sh\n{_NOTE}\n{script}\n")
            (self.bin / name).chmod(0o755)

    def lacks(self, *names: str) -> None:
        """Remove programs."""
        for name in names:
            (self.bin / name).unlink()

    def environment(self, **more: str) -> dict[str, str]:
        """The variables of a process on this machine."""
        path = os.pathsep.join(filter(None, [str(self.bin), self._real["PATH"]]))
        return {**self._real, "PATH": path, "HVDGAN_NOTES": str(self._notes), **more}

    def run(self, *words: str | Path, cwd: Path | None = None, **more: str) -> Done:
        """Run a command to its end."""
        streams = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "errors": "replace"}
        return subprocess.run(words, env=self.environment(**more), cwd=cwd or self.folder, timeout=100, **streams)

    def called(self) -> list[list[str]]:
        """What was noted since the last time: the words of each call."""
        lines = self._notes.read_text().split("\0\n")[:-1] if self._notes.exists() else []
        self._notes.unlink(missing_ok=True)
        return [line.split("\0") for line in lines]
