"""What log.txt says about a run: its starts, its warnings, what it was made of, and how it has ended."""

import dataclasses
import re

from hvdgan.pages.untrusted import Folder

FILE = "log.txt"
_DATED = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (.*)", re.DOTALL)
_LAUNCH = re.compile(r"hvdgan \S+: (\d{1,9}) rank\(s\) on \d+ host\(s\), launcher (\S+?)[,;]")
_RESUMES = re.compile(r"resuming at step (\d{1,15}) of")
_RECOVERS = re.compile(r"(\d{1,9}) rank\(s\) resume at step (\d{1,15}) of \d+, from the last commit")
_SKIPPED_UPDATE = re.compile(r"warning: step (\d{1,15}), stage .*: loss or gradients are not finite; every rank skips")
_SKIPPED_FILE = re.compile(r"skipped (.+?): (.+)", re.DOTALL)
_LOST = re.compile(r".*; this run (continues without it|ends here)")
_ENDS = {
    "done: ": "finished",
    "nothing to do: ": "finished",
    "stopped after step ": "stopped",
    "stopped before the first step": "stopped",
    "stopped: ": "failed",
}
_NETWORK = re.compile(r"  (\S+): ([\d,]+) trainable parameters, ([\d,]+) other")
_STAGE = re.compile(r"  (\S+): ([\d,]+) steps")
_UPDATE = re.compile(r"    (\S+): owns (.+?); (every .+?); (.+)")
_MOST = 200


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
    launcher: str = ""
    """name of the launcher of the latest start; none: a single process"""
    machine: list[str] = dataclasses.field(default_factory=list)
    """versions, hosts and devices"""
    networks: list[tuple[str, str, str]] = dataclasses.field(default_factory=list)
    """names of the networks, with the numbers of their trainable parameters and of the others"""
    stages: list[Made] = dataclasses.field(default_factory=list)
    """stages, with their updates"""
    data: list[str] = dataclasses.field(default_factory=list)
    """source of the data, its size, and the map of its values"""
    restarts: list[int] = dataclasses.field(default_factory=list)
    """steps at which the run was resumed"""
    recoveries: int = 0
    """number of times that an elastic run resumed from memory with other ranks"""
    skipped_updates: list[int] = dataclasses.field(default_factory=list)
    """steps of the first skipped updates"""
    skipped_count: int = 0
    """number of skipped updates"""
    lost: Kept = dataclasses.field(default_factory=Kept)
    """lines about lost ranks"""
    warnings: Kept = dataclasses.field(default_factory=Kept)
    """warnings other than skipped updates"""
    skipped_files: Kept = dataclasses.field(default_factory=Kept)
    """files that were skipped, with the reasons"""
    input: str = ""
    """verdict on the speed of the input"""
    ended: str = ""
    """finished, stopped or failed; empty: the latest start has no last line"""
    ending: str = ""
    """that last line"""
    stops: int = 0
    """number of times that the run was asked to stop, and saved"""


def read(folder: Folder) -> Journal:
    """Read the log of a run folder; a file that is missing leaves it empty.

    Args:
        folder: run folder.
    """
    journal, section = Journal(), ""
    for line in folder.lines(FILE):
        text = line.decode("utf-8", "replace").rstrip("\n")
        if dated := _DATED.fullmatch(text):
            journal.began, journal.until = journal.began or dated[1], dated[1]
            section = _say(journal, dated[2])
        else:
            section = _describe(journal, text, section)
    return journal


def _say(journal: Journal, text: str) -> str:
    """Note a line with a date; returns the section of the lines below it, which has no name yet."""
    if text.startswith("step "):  # nearly all lines
        return ""
    if start := _LAUNCH.match(text):
        journal.starts += 1
        journal.ranks, journal.launcher = int(start[1]), start[2]
        journal.machine, journal.ended, journal.ending = [text], "", ""
        journal.networks, journal.stages, journal.data = [], [], []
        return ""
    if again := _RECOVERS.match(text):
        journal.recoveries += 1
        journal.ranks, journal.ended = int(again[1]), ""
    elif resumed := _RESUMES.match(text):
        _add_step(journal.restarts, resumed[1])
    elif skipped := _SKIPPED_UPDATE.match(text):
        journal.skipped_count += 1
        _add_step(journal.skipped_updates, skipped[1])
    elif file := _SKIPPED_FILE.match(text):
        journal.skipped_files.add(f"{file[1]}: {file[2]}")
    elif _LOST.match(text):
        journal.lost.add(text)
    elif text.startswith(("input keeps up", "warning: input is the bottleneck")):
        journal.input = text.removeprefix("warning: ")
    elif text.startswith("warning: "):
        journal.warnings.add(text.removeprefix("warning: "))
    elif begin := next((begin for begin in _ENDS if text.startswith(begin)), ""):
        journal.ended, journal.ending = _ENDS[begin], text
        journal.stops += _ENDS[begin] == "stopped"
    elif re.match(r"\S+: rank \d+: ", text) and not journal.networks and len(journal.machine) < _MOST:
        journal.machine.append(text)
    return ""


def _describe(journal: Journal, text: str, section: str) -> str:
    """Note a line without a date, of the description at a start; returns the section that it belongs to."""
    if text == "networks:":
        return "networks"
    if text.startswith("stages ("):
        return "stages"
    if text.startswith("data: "):
        journal.data = [text.removeprefix("data: ")]
        return "data"
    full = len(journal.networks) + len(journal.stages) + len(journal.data) > _MOST
    if full or not text.startswith("  "):
        return ""
    if section == "networks" and (network := _NETWORK.fullmatch(text)):
        journal.networks.append((network[1], network[2], network[3]))
    elif section == "stages" and (update := _UPDATE.fullmatch(text)) and journal.stages:
        journal.stages[-1].updates.append((update[1], update[2], update[3], update[4]))
    elif section == "stages" and (stage := _STAGE.fullmatch(text)):
        journal.stages.append(Made(stage[1], stage[2]))
    elif section == "data":
        journal.data.append(text.strip())
    return section


def _add_step(steps: list[int], text: str) -> None:
    if len(steps) < _MOST:
        steps.append(int(text))
