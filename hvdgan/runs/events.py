"""What happens in a run, as facts: events.jsonl holds them, and its log, its page and its state are made from them.

A line of the file is a JSON object with `time`, a local date and time, `event`, the kind of the event, and the fields
of its class.
"""

import contextlib
import dataclasses
import functools
import json
import time
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

FILE = "events.jsonl"
LOG = "log.txt"
_MOST = 1 << 53
"""integers of this size and more are no facts: nobody can count with them"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happens in a run."""

    is_shown: ClassVar[bool] = True
    """False for an event that the terminal need not show"""

    @property
    def line(self) -> str:
        """The line of the log about it."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Network:
    """A network and its numbers of parameters."""

    name: str
    trainable: int
    other: int
    is_frozen: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Update:
    """An update of a stage; `bytes` is the size of its all-reduce, 0 with one rank."""

    name: str
    owns: list[str]
    every: int
    bytes: int
    reduce: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """A stage of the schedule."""

    name: str
    steps: int
    updates: list[Update]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Start(Event):
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
    networks: list[Network]
    stages: list[Stage]
    data: list[str]
    changed: list[str]
    machine: list[str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recovery(Event):
    """An elastic run continues from memory, with other ranks."""

    ranks: int
    step: int
    last_step: int

    @property
    def line(self) -> str:
        return f"{self.ranks} rank(s) resume at step {self.step} of {self.last_step}, from the last commit"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SkippedUpdate(Event):
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class SkippedFile(Event):
    """A sample that cannot be used."""

    name: str
    reason: str

    @property
    def line(self) -> str:
        return f"skipped {self.name}: {self.reason}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint(Event):
    """A checkpoint was written: seconds for which the steps waited, and of the thread that wrote it."""

    is_shown = False
    step: int
    waited: float
    written: float

    @property
    def line(self) -> str:
        return f"checkpoint of step {self.step}: the steps waited {self.waited:.3f} s, written in {self.written:.3f} s"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation(Event):
    """Figures of held-out or generated samples by their names; None for one that is not finite."""

    step: int
    what: str
    values: dict[str, float | None]

    @property
    def line(self) -> str:
        figures = (f"{name} {'nan' if value is None else format(value, '.4g')}" for name, value in self.values.items())
        return f"step {self.step}, {self.what}: {' '.join(figures)}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Caution(Event):
    """A warning of any other kind."""

    text: str

    @property
    def line(self) -> str:
        return f"warning: {self.text}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LostLogger(Caution):
    """A logger has failed, and the run continues without it."""

    logger: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlowRank(Caution):
    """A rank for which the others wait: `ratio` times as slow as their median, mostly in `part` of its steps."""

    step: int
    rank: int
    host: str
    device: str
    ratio: float
    part: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputSpeed(Event):
    """Whether reading keeps up with computing, after the first steps."""

    is_bottleneck: bool
    text: str

    @property
    def line(self) -> str:
        return f"warning: {self.text}" if self.is_bottleneck else self.text


@dataclasses.dataclass(frozen=True, kw_only=True)
class LostRank(Event):
    """A rank that has failed, ended, fallen silent, or stands still."""

    rank: int
    host: str
    pid: int
    text: str

    @property
    def line(self) -> str:
        return self.text


@dataclasses.dataclass(frozen=True, kw_only=True)
class Standstill(Event):
    """No rank moves, and none is behind the others."""

    text: str

    @property
    def line(self) -> str:
        return self.text


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageEnd(Event):
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class End(Event):
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


KINDS: dict[str, type[Event]] = {
    "start": Start,
    "recovery": Recovery,
    "skipped_update": SkippedUpdate,
    "skipped_file": SkippedFile,
    "checkpoint": Checkpoint,
    "evaluation": Evaluation,
    "warning": Caution,
    "lost_logger": LostLogger,
    "slow_rank": SlowRank,
    "input_speed": InputSpeed,
    "lost_rank": LostRank,
    "standstill": Standstill,
    "stage_end": StageEnd,
    "end": End,
}
_NAMES = {kind: name for name, kind in KINDS.items()}


def dated(text: str) -> str:
    """A line of log.txt, with the date and time and its end."""
    return f"{_now()} {text}\n"


def as_json(event: Event) -> str:
    """The line of events.jsonl about an event, with its end."""
    return json.dumps({"time": _now(), "event": _NAMES[type(event)], **dataclasses.asdict(event)}) + "\n"


def of_json(record: dict[str, Any]) -> Event | None:
    """The event of a line of events.jsonl; None if it is of no known kind, or its facts are not of their types."""
    kind = record.get("event")
    try:
        return _as(KINDS[kind], record) if isinstance(kind, str) and kind in KINDS else None
    except (TypeError, KeyError):
        return None


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a file, one a line; damaged lines are skipped. A missing file has none."""
    with contextlib.suppress(FileNotFoundError):
        for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
            with contextlib.suppress(ValueError, RecursionError):
                if isinstance(record := json.loads(line), dict):
                    yield record


def starts(path: Path) -> list[Start]:
    """The starts that a file of events tells of; none if it cannot be read."""
    with contextlib.suppress(OSError):
        return [each for each in map(of_json, json_lines(path)) if isinstance(each, Start)]
    return []


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


@functools.cache
def _types(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _as(kind: Any, value: Any) -> Any:
    """A value of JSON as one of a type; raises a TypeError or a KeyError if it is none."""
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        types = _types(kind)
        return kind(**{each.name: _as(types[each.name], value[each.name]) for each in dataclasses.fields(kind)})
    of = typing.get_args(kind)
    if typing.get_origin(kind) is list and type(value) is list:
        return [_as(of[0], each) for each in value]
    if typing.get_origin(kind) is dict and type(value) is dict:
        return {_as(of[0], name): _as(of[1], each) for name, each in value.items()}
    if type(value) not in (*of, kind) or (type(value) is int and abs(value) >= _MOST):
        raise TypeError(f"not {kind}")
    return value
