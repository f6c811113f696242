"""Collects the broken files that the ranks skip, and sends each name to the other ranks once."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from hvdgan.cli.errors import RunError
from hvdgan.cli.events import Event, SkippedFile
from hvdgan.cli.shared_errors import Peers
from hvdgan.data import BadFile, refuse_if_too_many


class BadFiles:
    """The broken files that all ranks have met."""

    def __init__(
        self,
        name: str,
        found: Sequence[BadFile],
        total: int,
        max_bad_fraction: float,
        ranks: Peers,
        tell: Callable[[Event], None],
        *,
        saved: Mapping[str, str],
    ) -> None:
        self._name = name
        self._found = found
        self._total = total
        self._max_bad_fraction = max_bad_fraction
        self._ranks = ranks
        self._tell = tell
        self.known = dict(saved)
        """reasons by file name, the same on every rank, as JSON types"""

    def report(self, met: Iterable[BadFile]) -> None:
        """Share new broken files with the other ranks; every rank calls this."""
        self._add(self._found)
        self._found = ()
        for some in self._ranks.gather([bad for bad in met if bad.name not in self.known], "bad files"):
            self._add(some)
        refuse_if_too_many(
            RunError,
            name=self._name,
            bad_files=list(self.known.items()),
            total=self._total,
            max_bad_fraction=self._max_bad_fraction,
        )

    def _add(self, some: Iterable[Sequence[str]]) -> None:
        for name, reason in some:
            if name not in self.known:
                self._tell(SkippedFile(name=name, reason=reason))
                self.known[name] = reason
