"""Lets independent copies of a run measure at the same time, although they are no ranks of one job."""

import time
from pathlib import Path

from hvdgan.cli.errors import RunError

_WAIT_SECONDS = 600.0


class Meeting:
    """Signals between the copies, by files in a shared folder."""

    def __init__(self, folder: Path, number: int, count: int) -> None:
        self._folder = folder
        self._number = number
        self._count = count

    def wait(self) -> None:
        """Wait until all copies are ready."""
        end = time.monotonic() + _WAIT_SECONDS
        while not self._all("ready"):
            if time.monotonic() > end:
                raise RunError(f"not all of the {self._count} copies are ready after {_WAIT_SECONDS:g} s")
            time.sleep(0.01)

    def all_done(self) -> bool:
        """Signal that this copy has measured, and check whether all have: until then it keeps the machine busy."""
        return self._all("done")

    def _all(self, what: str) -> bool:
        (self._folder / f"{what}-{self._number}").touch()
        return len(list(self._folder.glob(f"{what}-*"))) >= self._count
