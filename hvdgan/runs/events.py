"""What happens in a run, as facts: events.jsonl holds them, and its log, its page and its state are made from them.

A line of the file is a JSON object with `time`, a local date and time, `event`, the kind of the event, and the fields
of its class.
"""

import dataclasses
import json
import time
from pathlib import Path
from typing import Any, ClassVar, TypeVar, dataclass_transform, get_origin

from hvdgan.runs.folder import Facts, Folder

FILE = "events.jsonl"
LOG = "log.txt"
Kind = TypeVar("Kind", bound="Event")
KINDS: dict[str, type["Event"]] = {}
"""the classes of events by their names in the file"""


@dataclass_transform(frozen_default=True, kw_only_default=True)
@dataclasses.dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happens in a run; each of its classes is a dataclass, too."""

    is_shown: ClassVar[bool] = True
    """False for an event that the terminal need not show"""
    kind: ClassVar[str]
    """name of its class in events.jsonl"""

    def __init_subclass__(cls, *, kind: str) -> None:
        super().__init_subclass__()
        cls.kind = kind
        KINDS[kind] = dataclasses.dataclass(frozen=True, kw_only=True)(cls)

    @property
    def line(self) -> str:
        """The line of the log about it: its `text`, unless the class makes another."""
        return getattr(self, "text")  # noqa: B009  # not all events have one


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworkFacts:
    """A network and its numbers of parameters."""

    name: str
    trainable: int
    other: int
    is_frozen: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpdateFacts:
    """An update of a stage; `bytes` is the size of its all-reduce, 0 with one rank."""

    name: str
    owns: list[str]
    every: int
    bytes: int
    reduce: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageFacts:
    """A stage of the schedule."""

    name: str
    steps: int
    updates: list[UpdateFacts]
    together: bool = False
    """whether all updates of a step are computed before one is applied"""


class Start(Event, kind="start"):
    """A start of the run, new or resumed, with paragraphs in the log instead of a line.

    `command` is what was typed, without its launcher; `data`, `changed` and `machine` are lines for people.
    """

    version: str
    command: str
    recipe: str
    step: int
    last_step: int
    ranks: int
    hosts: int
    launcher: str
    is_elastic: bool
    slurm_job: str
    slurm_restart: int
    networks: list[NetworkFacts]
    stages: list[StageFacts]
    data: list[str]
    changed: list[str]
    machine: list[str]


class Recovery(Event, kind="recovery"):
    """An elastic run continues from memory, with other ranks."""

    ranks: int
    step: int
    last_step: int

    @property
    def line(self) -> str:
        return f"{self.ranks} rank(s) resume at step {self.step} of {self.last_step}, from the last commit"


class SkippedUpdate(Event, kind="skipped_update"):
    """An update that no rank has applied, for the `times`-th time in a row."""

    step: int
    stage: str
    update: str
    times: int

    @property
    def line(self) -> str:
        return (
            f"warning: step {self.step}, stage {self.stage}, update {self.update}: loss or gradients are not finite; "
            f"every rank skips the update ({self.times} in a row)"
        )


class SkippedFile(Event, kind="skipped_file"):
    """A sample that cannot be used."""

    name: str
    reason: str

    @property
    def line(self) -> str:
        return f"skipped {self.name}: {self.reason}"


class Checkpoint(Event, kind="checkpoint"):
    """A checkpoint was written: seconds for which the steps waited, and of the thread that wrote it."""

    is_shown = False
    step: int
    waited: float
    written: float

    @property
    def line(self) -> str:
        return f"checkpoint of step {self.step}: the steps waited {self.waited:.3f} s, written in {self.written:.3f} s"


class Evaluation(Event, kind="evaluation"):
    """Figures of held-out or generated samples by their names; None for one that is not finite."""

    step: int
    what: str
    values: dict[str, float | None]

    @property
    def line(self) -> str:
        figures = (f"{name} {'nan' if value is None else format(value, '.4g')}" for name, value in self.values.items())
        return f"step {self.step}, {self.what}: {' '.join(figures)}"


class Caution(Event, kind="warning"):
    """A warning of any other kind."""

    text: str

    @property
    def line(self) -> str:
        return f"warning: {self.text}"


class LostLogger(Caution, kind="lost_logger"):
    """A logger has failed, and the run continues without it."""

    logger: str


class SlowRank(Caution, kind="slow_rank"):
    """A rank for which the others wait: `ratio` times as slow as their median, mostly in `part` of its steps."""

    step: int
    rank: int
    host: str
    device: str
    ratio: float
    part: str


class InputSpeed(Event, kind="input_speed"):
    """Whether reading keeps up with computing, after the first steps."""

    is_bottleneck: bool
    text: str

    @property
    def line(self) -> str:
        return f"warning: {self.text}" if self.is_bottleneck else self.text


class Standstill(Event, kind="standstill"):
    """No rank moves, and none is behind the others."""

    text: str


class LostRank(Event, kind="lost_rank"):
    """A rank that has failed, ended, fallen silent, or stands still."""

    rank: int
    host: str
    pid: int
    text: str


class StageEnd(Event, kind="stage_end"):
    """A stage ends early, because its metric no longer improves."""

    stage: str
    steps: int
    planned: int
    metric: str
    last_step: int

    @property
    def line(self) -> str:
        return (
            f"stage {self.stage} ends after {self.steps} of {self.planned} steps: {self.metric} no longer improves; "
            f"this run ends at step {self.last_step}"
        )


class End(Event, kind="end"):
    """The run ends: `state` is finished, stopped (on request) or failed, `text` says how.

    is_saved: True if a checkpoint of this step is written.
    is_of_lost_rank: True if a lost rank ends the processes, which may hold the lock of the folder a moment longer.
    """

    state: str
    text: str
    is_saved: bool = False
    is_of_lost_rank: bool = False

    @property
    def line(self) -> str:
        return f"stopped: {self.text}" if self.state == "failed" and not self.is_of_lost_rank else self.text


def dated(text: str) -> str:
    """A line of log.txt, with the date and time and its end."""
    return f"{_now()} {text}\n"


def as_json(event: Event) -> str:
    """The line of events.jsonl about an event, with its end."""
    return json.dumps({"time": _now(), "event": event.kind, **dataclasses.asdict(event)}) + "\n"


def of_json(record: Facts) -> Event | None:
    """The event of a line of events.jsonl; None if it is of no known kind, or lacks facts."""
    try:
        kind = KINDS[record["event"]]
        types: dict[str, Any] = {each.name: each.type for each in dataclasses.fields(kind)}
        facts = {name: record[name] for name in types}
        if not all(isinstance(facts[name], get_origin(each) or each) for name, each in types.items()):
            return None
        if kind is Start:
            facts["networks"] = [NetworkFacts(**each) for each in facts["networks"]]
            facts["stages"] = [_stage(**each) for each in facts["stages"]]
        return kind(**facts)
    except (KeyError, TypeError):
        return None


def _stage(updates: list[Facts], **others: Any) -> StageFacts:
    return StageFacts(updates=[UpdateFacts(**each) for each in updates], **others)


@dataclasses.dataclass
class Journal:
    """The events of a run, in their order except those of checkpoints, of which only the seconds waited are kept."""

    told: list[Event] = dataclasses.field(default_factory=list)
    waited: list[float] = dataclasses.field(default_factory=list)
    started: list[tuple[str, "Start | Recovery"]] = dataclasses.field(default_factory=list)  # with date and time
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
    def end(self) -> End | None:
        """The end of the latest start or recovery; None if it has none."""
        latest = self.last(Start, Recovery, End)
        return latest if isinstance(latest, End) else None

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
        return list({each.name: f"{each.name}: {each.reason}" for each in self.of(SkippedFile)}.values())

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
    """Read the events of a run folder; a file that is missing leaves the journal empty."""
    journal = Journal()
    for record in folder.records(FILE):
        if (event := of_json(record)) is None:
            continue
        journal.until = str(record.get("time", ""))
        journal.began = journal.began or journal.until
        if isinstance(event, Checkpoint):
            journal.waited.append(event.waited)
        else:
            journal.told.append(event)
        if isinstance(event, Start | Recovery):
            journal.started.append((journal.until, event))
    return journal


def starts(path: Path) -> list[Start]:
    """The starts that a file of events tells of; none if it cannot be read."""
    return read(Folder(path.parent)).of(Start)


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")
