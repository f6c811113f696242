"""The broken files that a run skips: known to all ranks, and each sent to the others once."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from hvdgan.cli.errors import RunError
from hvdgan.cli.shared_errors import Peers
from hvdgan.data import BadFile, refuse_if_too_many

_PORTION = 4096
"""files at most that all ranks together send in one call, so that its size does not grow with the ranks"""


class BadFiles:
    """Collects what the ranks have met.

    Args:
        name: what `--data` says.
        found: what was broken on opening, which all ranks know.
        total: the number of all images, broken ones included.
        max_bad_fraction: the part of them that may be broken.
        ranks: that tell each other.
        say: called with a line for people about each file, once.
        saved: what an earlier run had in `known`, about which its line has been said.
    """

    def __init__(
        self,
        name: str,
        found: Sequence[BadFile],
        total: int,
        max_bad_fraction: float,
        ranks: Peers,
        say: Callable[[str], None],
        *,
        saved: Mapping[str, str],
    ) -> None:
        self._name = name
        self._found = found
        self._total = total
        self._max_bad_fraction = max_bad_fraction
        self._ranks = ranks
        self._say = say
        self.known = dict(saved)
        """reasons by name, the same on every rank, expressible in JSON"""

    def report(self, met: Iterable[BadFile]) -> None:
        """Tell the other ranks what is new; every rank calls it.

        Args:
            met: all that this rank has met so far.

        Raises:
            RunError: on every rank alike, where too many are broken.
        """
        self._add(self._found)
        self._found = ()
        waiting = [bad for bad in met if bad.name not in self.known]
        senders = self._ranks.size
        while senders:
            portion = max(1, _PORTION // senders)
            everyones = self._ranks.gather([waiting[:portion], len(waiting) > portion], "bad files")
            for some, _ in everyones:
                self._add(some)
            waiting = [bad for bad in waiting[portion:] if bad.name not in self.known]
            # Next time the ranks that have more share it alone: it may be one out of hundreds.
            senders = sum(more for _, more in everyones)
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
                self._say(f"skipped {name}: {reason}")
                self.known[name] = reason
