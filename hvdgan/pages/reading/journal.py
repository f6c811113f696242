"""What log.txt says about a run: its starts, its warnings, what it was made of, and how it has ended."""

import dataclasses
import re
from collections.abc import Iterator

from hvdgan.pages.reading.untrusted import Folder

FILE = "log.txt"
_DATED = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (.*)", re.DOTALL)
_START = re.compile(r"hvdgan \S+, recipe ")
_LAUNCH = re.compile(r"(\d{1,9}) rank\(s\) on (\d{1,9}) host\(s\), launcher (\S+?)(, elastic)?, ")
_REQUEUED = re.compile(r".*; (Slurm job \S{1,50}, restart \d{1,9})")
# Older logs hold the paragraphs as the terminal shows them: cut where a long path ends.
_LAST_OF_START = re.compile(r"run folder .*: (?:a new run|(resuming|ended) at step (\d{1,15}) of |…\Z)", re.DOTALL)
_RECOVERS = re.compile(r"(\d{1,9}) rank\(s\) resume at step (\d{1,15}) of \d+, from the last commit")
_SKIPPED_UPDATE = re.compile(r"warning: step (\d{1,15}), stage .*: loss or gradients are not finite; every rank skips")
_SAVED = re.compile(r"checkpoint of step \d{1,15}: the steps waited (\d{1,9}\.\d{3}) s, written in (\d{1,9}\.\d{3}) s")
_SKIPPED_FILE = re.compile(r"skipped (.+?: .+)", re.DOTALL)
_LOST = re.compile(
    r"(?:stopped: .*; )?(rank \d{1,9} \(host [^()]{1,255}, pid \d{1,10}\)) "
    r"(?:has failed and|has ended without|has been silent for|is alive and has made no progress for) "
)
_STALLED = "no rank has made progress for "
_ENDS = {
    "done: ": "finished",
    "nothing to do: ": "finished",
    "stopped after step ": "stopped",
    "stopped before the first step": "stopped",
    "stopped: ": "failed",
}
_CHANGED = ("differs from the defaults:", "all settings have their defaults")
_NETWORK = re.compile(r"(\S+) ([\d,]+) trainable parameters, ([\d,]+) other")
_STAGE = re.compile(r"stage (\S+), (\d[\d,]*) steps: (.*)")
_UPDATE = re.compile(r"(\S+) owns (.+?)(?: and all-reduces ([\d,]+) bytes)?(?:, (every \d+ steps))?")
_LINE_OF_STEP = re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d step ")
_MOST = 200
_MOST_NAMES = 2000
_LONGEST = 10_000
"""characters of a paragraph that are kept"""


@dataclasses.dataclass
class Kept:
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
            self.lines.append(line)


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
class Made:
    """A stage as the log describes it.

    Args:
        name: name of the stage.
        steps: number of its steps, as text.
        updates: name, owned networks, how often, and the reduced bytes of each update.
    """

    name: str
    steps: str
    updates: list[tuple[str, str, str, str]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Journal:
    """The facts of a log; those of the latest start where a start repeats them."""

    starts: int = 0
    """number of times that the run was started"""
    began: str = ""
    """date and time of the first line"""
    until: str = ""
    """date and time of the latest line"""
    ranks: int = 0
    """number of ranks of the latest start"""
    hosts: int = 0
    """number of hosts of the latest start"""
    launcher: str = ""
    """name of the launcher of the latest start; none: a single process"""
    is_elastic: bool = False
    """True if the latest start was one of an elastic run"""
    requeue: str = ""
    """Slurm job of the latest start that was one after a requeue, and how many times it was requeued by then"""
    machine: list[str] = dataclasses.field(default_factory=list)
    """versions, hosts and devices"""
    networks: list[tuple[str, str, str]] = dataclasses.field(default_factory=list)
    """names of the networks, with the numbers of their trainable parameters and of the others"""
    stages: list[Made] = dataclasses.field(default_factory=list)
    """stages, with their updates"""
    data: list[str] = dataclasses.field(default_factory=list)
    """source of the data, its size, and the map of its values"""
    changed: str = ""
    """flags of all settings that differ from their defaults, with a few words; empty: not known, or cut off"""
    restarts: Steps = dataclasses.field(default_factory=Steps)
    """steps at which the run was resumed from a checkpoint"""
    recoveries: Steps = dataclasses.field(default_factory=Steps)
    """steps at which an elastic run was resumed from memory, with other ranks"""
    skipped_updates: Steps = dataclasses.field(default_factory=Steps)
    """steps of skipped updates"""
    lost: Kept = dataclasses.field(default_factory=Kept)
    """first line about each lost rank"""
    lost_names: set[str] = dataclasses.field(default_factory=set)
    """ranks that the latest start has lost, with their hosts and pids"""
    loss: str = ""
    """latest line about a lost rank, or about ranks that all stand still, since the latest start or recovery"""
    warnings: Kept = dataclasses.field(default_factory=Kept)
    """warnings other than skipped updates"""
    skipped_files: Kept = dataclasses.field(default_factory=Kept)
    """files that were skipped, with the reasons"""
    waited: Times = dataclasses.field(default_factory=Times)
    """times that the steps have waited for a checkpoint"""
    written: Times = dataclasses.field(default_factory=Times)
    """times that a thread has taken to write a checkpoint"""
    skipped_lines: set[str] = dataclasses.field(default_factory=set)
    """the first of them, to find those that are logged again"""
    input: str = ""
    """verdict on the speed of the input"""
    ended: str = ""
    """finished, stopped or failed; empty: the latest start has no last line"""
    ending: str = ""
    """that last line"""
    stops: int = 0
    """number of times that the run was asked to stop, and saved"""
    checkpoints: bool = False
    """True if a line tells of a checkpoint"""

    @property
    def resumptions(self) -> list[int]:
        """Steps at which the run was resumed, from a checkpoint or from memory, ascending."""
        return sorted({*self.restarts.kept, *self.recoveries.kept})


def read(folder: Folder) -> Journal:
    """Read the log of a run folder; a file that is missing leaves it empty.

    Args:
        folder: run folder.
    """
    journal = Journal()
    start: list[str] | None = None
    for line in folder.lines(FILE):
        if start is None and journal.until and _LINE_OF_STEP.match(line):  # nearly all lines
            journal.until = line[:19].decode()
            continue
        dated = _DATED.fullmatch(line.decode("utf-8", "replace").rstrip("\n"))
        if dated is None:
            continue
        journal.began, journal.until = journal.began or dated[1], dated[1]
        if _START.match(dated[2]):
            start = [dated[2][:_LONGEST]]
            _begin(journal)
        elif start is None:
            _say(journal, dated[2])
        else:
            start = _continued(start[:_MOST], dated[2])
            if len(start[-1]) <= _LONGEST and (last := _LAST_OF_START.match(start[-1])):
                _describe(journal, start)
                if last[1] == "resuming":
                    journal.restarts.add(int(last[2]))
                    journal.checkpoints = True
                start = None
    if start is not None:
        _describe(journal, start)
    return journal


def _continued(paragraphs: list[str], line: str) -> list[str]:
    """Add a line of a start to its paragraphs, whose later lines are indented; one that is too long is cut."""
    if line.startswith("    "):
        *paragraphs, last = paragraphs
        line = f"{last} {line.strip()}"
    return [*paragraphs, line if len(line) <= _LONGEST else f"{line[:_LONGEST]} …"]


def _begin(journal: Journal) -> None:
    """Note another start; what it is made of replaces what the earlier one was."""
    journal.starts += 1
    journal.ended, journal.ending, journal.loss = "", "", ""
    journal.lost_names.clear()  # a pid may come again
    journal.machine, journal.networks, journal.stages, journal.data = [], [], [], []


def _say(journal: Journal, text: str) -> None:
    """Note a line outside of a start."""
    _note_loss(journal, text)
    if again := _RECOVERS.match(text):
        journal.recoveries.add(int(again[2]))
        journal.ranks, journal.is_elastic, journal.ended, journal.loss = int(again[1]), True, "", ""
    elif skipped := _SKIPPED_UPDATE.match(text):
        journal.skipped_updates.add(int(skipped[1]))
    elif saved := _SAVED.fullmatch(text):
        journal.checkpoints = True
        journal.waited.add(float(saved[1]))
        journal.written.add(float(saved[2]))
    elif file := _SKIPPED_FILE.match(text):
        _add_file(journal, file[1])
    elif text.startswith(("input keeps up", "warning: input is the bottleneck")):
        journal.input = text.removeprefix("warning: ")
    elif text.startswith("warning: "):
        journal.warnings.add(text.removeprefix("warning: "))
    elif begin := next((begin for begin in _ENDS if text.startswith(begin)), ""):
        journal.ended, journal.ending = _ENDS[begin], text
        journal.stops += _ENDS[begin] == "stopped"
        journal.checkpoints |= " and saved" in text


def _add_file(journal: Journal, line: str) -> None:
    """Note a file that was skipped; a run that is resumed from before may say it again."""
    if line[:_LONGEST] in journal.skipped_lines:
        return
    journal.skipped_files.add(line)
    if len(journal.skipped_lines) < _MOST_NAMES:
        journal.skipped_lines.add(line[:_LONGEST])


def _note_loss(journal: Journal, text: str) -> None:
    """Note a line about a lost rank; each rank counts once, however many lines name it."""
    found = _LOST.match(text)
    if found or text.startswith(_STALLED):
        journal.loss = text
    if found and found[1] not in journal.lost_names:
        journal.lost.add(text)
        if len(journal.lost_names) < _MOST:
            journal.lost_names.add(found[1])


def _describe(journal: Journal, paragraphs: list[str]) -> None:
    """Note what the paragraphs of a start say; one that is cut off at its end is used as far as it goes."""
    journal.machine = paragraphs[:1]
    for number, text in enumerate(paragraphs):
        if text.startswith("networks: "):
            found = map(_NETWORK.fullmatch, text.removeprefix("networks: ").split("; "))
            journal.networks = [(each[1], each[2], each[3]) for each in found if each]
        elif text.startswith(("data: ", "values of ")):
            journal.data.append(text.removeprefix("data: "))
        elif stage := _STAGE.fullmatch(text):
            journal.stages.append(Made(stage[1], stage[2], list(_updates(stage[3]))))
        elif launch := _LAUNCH.match(text):
            journal.ranks, journal.hosts, journal.launcher = int(launch[1]), int(launch[2]), launch[3]
            journal.is_elastic = launch[4] is not None
            if requeued := _REQUEUED.fullmatch(text):
                journal.requeue = requeued[1]
            journal.machine += paragraphs[number : number + 2]  # the hosts are in the next one
    flags = next((text for text in paragraphs if text.startswith(_CHANGED)), "")
    journal.changed = "" if flags.endswith("…") else flags


def _updates(text: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield name, owned networks, how often, and the reduced bytes of each update."""
    whole = [each for each in text.split("; ") if not each.endswith("…")]
    for update in filter(None, map(_UPDATE.fullmatch, whole)):
        reduced = f"all-reduces {update[3]} bytes" if update[3] else "no all-reduce with one rank"
        yield update[1], update[2], update[4] or "every step", reduced
