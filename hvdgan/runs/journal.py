"""What events.jsonl says about a run: its starts, its warnings, what it was made of, and how it has ended."""

import dataclasses
import re
from typing import TypeVar

from hvdgan.runs import events
from hvdgan.runs.events import Event, LostRank, Recovery, StageEnd, Standstill, Start
from hvdgan.runs.lines import Folder

_DATE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
_MOST = 50_000
Kind = TypeVar("Kind", bound=Event)


@dataclasses.dataclass
class Journal:
    """The events of a run, in their order except those of checkpoints, of which only the seconds waited are kept."""

    told: list[Event] = dataclasses.field(default_factory=list)
    waited: list[float] = dataclasses.field(default_factory=list)
    began: str = ""
    until: str = ""

    def of(self, *kinds: type[Kind]) -> list[Kind]:
        """The events of some kinds."""
        return [event for event in self.told if isinstance(event, kinds)]

    def last(self, *kinds: type[Kind]) -> Kind | None:
        """The latest event of some kinds; None if there is none."""
        return next((event for event in self.told[::-1] if isinstance(event, kinds)), None)

    @property
    def start(self) -> Start | None:
        """The latest start."""
        return self.last(Start)

    @property
    def end(self) -> events.End | None:
        """The end of the latest start or recovery; None if it has none."""
        latest = self.last(Start, Recovery, events.End)
        return latest if isinstance(latest, events.End) else None

    @property
    def loss(self) -> str:
        """Line about a lost rank, or about ranks that all stand still, since the latest start or recovery."""
        latest = self.last(Start, Recovery, LostRank, Standstill)
        return latest.line if isinstance(latest, LostRank | Standstill) else ""

    @property
    def restarts(self) -> list[int]:
        """Steps at which the run was resumed from a checkpoint."""
        return [start.step for start in self.of(Start) if 0 < start.step < start.last_step]

    @property
    def resumptions(self) -> list[int]:
        """Steps at which the run was resumed, from a checkpoint or from memory, ascending."""
        return sorted({*self.restarts, *(each.step for each in self.of(Recovery))})

    @property
    def last_step(self) -> int | None:
        """Step at which the run ends; None if it is not known."""
        latest = self.last(Start, Recovery, StageEnd)
        return latest.last_step if isinstance(latest, Start | Recovery | StageEnd) else None

    @property
    def skipped_files(self) -> list[str]:
        """Files that were skipped, with the reasons; a run that is resumed may tell of a file again."""
        return list({each.name: f"{each.name}: {each.reason}" for each in self.of(events.SkippedFile)}.values())

    @property
    def lost(self) -> list[str]:
        """A line about each lost rank; several events may tell of one."""
        starts = 0
        found: dict[tuple[int, str, int], str] = {}
        for event in self.of(Start, LostRank):
            starts += isinstance(event, Start)
            if isinstance(event, LostRank):
                found.setdefault((starts, event.host, event.pid), event.text)
        return list(found.values())


def read(folder: Folder) -> Journal:
    """Read the events of a run folder; a file that is missing leaves it empty."""
    journal, left_out = Journal(), 0
    for record in folder.each(events.FILE):
        event, time = events.of_json(record), record.get("time")
        if event is None or not isinstance(time, str) or not _DATE.fullmatch(time):
            continue
        journal.began, journal.until = journal.began or time, time
        if isinstance(event, events.Checkpoint):
            journal.waited.append(event.waited)
        elif len(journal.told) < _MOST:
            journal.told.append(event)
        else:
            left_out += 1
    if left_out:
        folder.remarks.append(f"{events.FILE}: events after the first {_MOST:,} are left out ({left_out:,})")
    return journal
