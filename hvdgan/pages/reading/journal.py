"""What events.jsonl says about a run: its starts, its warnings, what it was made of, and how it has ended."""

import dataclasses
import re
from collections.abc import Sequence

from hvdgan.cli import events
from hvdgan.cli.events import Event
from hvdgan.pages.reading.untrusted import Folder

_DATE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
_DATED = re.compile(rb"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) ", re.MULTILINE)
_END_OF_LOG = 1 << 16
"""bytes of the end of the log in which its last time is looked for"""
_MOST = 200
_MOST_NAMES = 2000
_LONGEST = 10_000
"""characters of a line that are kept"""


@dataclasses.dataclass
class FirstLines:
    """The first lines of one kind, and how many there are.

    Args:
        lines: first lines.
        count: number of all lines.
    """

    lines: list[str] = dataclasses.field(default_factory=list)
    count: int = 0

    def add(self, line: str) -> None:
        """Count a line, and keep it if there are not too many."""
        self.count += 1
        if self.count <= _MOST:
            self.lines.append(line[:_LONGEST])


@dataclasses.dataclass
class Steps:
    """The steps of events of one kind, evenly thinned if they are many, and how many there are.

    Args:
        kept: steps.
        count: number of all events.
    """

    kept: list[int] = dataclasses.field(default_factory=list)
    count: int = 0
    _each: int = 1

    def add(self, step: int) -> None:
        """Count an event, and keep its step or leave it out."""
        if self.count % self._each == 0:
            self.kept.append(step)
        self.count += 1
        if len(self.kept) > _MOST:
            self.kept, self._each = self.kept[::2], 2 * self._each


@dataclasses.dataclass
class Times:
    """Seconds of something that happens again and again: how often, their sum, and the largest."""

    count: int = 0
    total: float = 0.0
    longest: float = 0.0

    def add(self, seconds: float) -> None:
        """Add one of them."""
        self.count += 1
        self.total += seconds
        self.longest = max(self.longest, seconds)


@dataclasses.dataclass
class Journal:
    """The facts of a run; those of the latest start where a start repeats them."""

    began: str = ""
    """date and time of the first event"""
    until: str = ""
    """date and time of the latest line of the log, or of the latest event if there is no log"""
    start: events.Start | None = None
    """the latest start"""
    starts: int = 0
    """number of times that the run was started"""
    ranks: int = 0
    """number of ranks, of the latest start or recovery"""
    is_elastic: bool = False
    """True if the run is an elastic one"""
    restarts: Steps = dataclasses.field(default_factory=Steps)
    """steps at which the run was resumed from a checkpoint"""
    recoveries: Steps = dataclasses.field(default_factory=Steps)
    """steps at which an elastic run was resumed from memory, with other ranks"""
    skipped_updates: Steps = dataclasses.field(default_factory=Steps)
    """steps of skipped updates"""
    lost: FirstLines = dataclasses.field(default_factory=FirstLines)
    """line about each lost rank"""
    loss: str = ""
    """latest line about a lost rank, or about ranks that all stand still, since the latest start or recovery"""
    warnings: FirstLines = dataclasses.field(default_factory=FirstLines)
    """warnings other than skipped updates"""
    skipped_files: FirstLines = dataclasses.field(default_factory=FirstLines)
    """files that were skipped, with the reasons"""
    waited: Times = dataclasses.field(default_factory=Times)
    """times that the steps have waited for a checkpoint"""
    written: Times = dataclasses.field(default_factory=Times)
    """times that a thread has taken to write a checkpoint"""
    input: str = ""
    """verdict on the speed of the input"""
    end: events.End | None = None
    """the end of the latest start; None: it has none"""
    stops: int = 0
    """number of times that the run was asked to stop, and saved"""
    checkpoints: bool = False
    """True if an event tells of a checkpoint"""
    requeue: str = ""
    """Slurm job of the latest start that was one after a requeue, and how many times it was requeued by then"""
    _known: set[str] = dataclasses.field(default_factory=set)
    """the first of the skipped files and lost ranks, to find those that come again"""

    @property
    def resumptions(self) -> list[int]:
        """Steps at which the run was resumed, from a checkpoint or from memory, ascending."""
        return sorted({*self.restarts.kept, *self.recoveries.kept})

    @property
    def stages(self) -> Sequence[events.Stage]:
        """The stages of the schedule, if they are known."""
        return self.start.stages if self.start else ()

    def add(self, event: Event) -> None:
        """Note an event."""
        match event:
            case events.Start():
                self._begin(event)
            case events.Recovery():
                self.recoveries.add(event.step)
                self.ranks, self.is_elastic, self.end, self.loss = event.ranks, True, None, ""
            case events.SkippedUpdate():
                self.skipped_updates.add(event.step)
            case events.SkippedFile() if self._is_new(event.name):
                self.skipped_files.add(f"{event.name}: {event.reason}")
            case events.Checkpoint():
                self.checkpoints = True
                self.waited.add(event.waited)
                self.written.add(event.written)
            case events.Caution():
                self.warnings.add(event.text)
            case events.InputSpeed():
                self.input = event.text[:_LONGEST]
            case events.LostRank() | events.Standstill():
                self.loss = event.text[:_LONGEST]
                if isinstance(event, events.LostRank) and self._is_new(f"{self.starts} {event.host} {event.pid}"):
                    self.lost.add(event.text)
            case events.End():
                self.end = event
                self.stops += event.state == "stopped"
                self.checkpoints |= event.is_saved

    def _begin(self, start: events.Start) -> None:
        """Note another start; what it is made of replaces what the earlier one was."""
        self.start, self.ranks, self.is_elastic = start, start.ranks, start.is_elastic
        self.starts += 1
        self.end, self.loss = None, ""
        if start.slurm_job:
            self.requeue = f"Slurm job {start.slurm_job[:_MOST]}, restart {start.slurm_restart}"
        if 0 < start.step < start.last_step:
            self.restarts.add(start.step)
            self.checkpoints = True

    def _is_new(self, name: str) -> bool:
        """Note a name; a run that is resumed from before may tell it again, and several lines may tell of one rank."""
        is_new = name[:_LONGEST] not in self._known
        if len(self._known) < _MOST_NAMES:
            self._known.add(name[:_LONGEST])
        return is_new


def read(folder: Folder) -> Journal:
    """Read the events of a run folder; a file that is missing leaves it empty."""
    journal = Journal()
    for records in folder.records(events.FILE):
        for record in records:
            event, time = events.of_json(record), record.get("time")
            if event is not None and isinstance(time, str) and _DATE.fullmatch(time):
                journal.began, journal.until = journal.began or time, time
                journal.add(event)
    journal.until = _end_of_log(folder) or journal.until
    return journal


def _end_of_log(folder: Folder) -> str:
    """The date and time of the last line of the log; "" if there is none."""
    path = folder.find(events.LOG)
    if path is None:
        return ""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _END_OF_LOG))
            found = _DATED.findall(file.read(_END_OF_LOG))
    except OSError as error:
        folder.remarks.append(f"{events.LOG} cannot be read: {error}")
        return ""
    return found[-1].decode() if found else ""
