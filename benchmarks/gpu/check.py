"""The result of one check, and the parts that consist of checks."""

import dataclasses
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

from gpu.setting import Setting, TimeIsUp

Verdict = Literal["passed", "failed", "not run"]


@dataclasses.dataclass(frozen=True)
class Goal:
    """A ratio that should be reached on GPUs; it is no condition of a check.

    Args:
        ratio: measured ratio.
        bound: smallest ratio that reaches the goal.
    """

    ratio: float
    bound: float

    @property
    def is_reached(self) -> bool:
        """Whether the ratio is at least the bound."""
        return self.ratio >= self.bound


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """The result of one check.

    Args:
        name: name of the check, unique in its part; a later check of the same name replaces an earlier one.
        verdict: passed, failed, or not run.
        found: result in words; of a check that was not run, the reason and the command that helps.
        figures: numbers, as JSON types.
        errors: lines that say why it failed.
        command: command line.
        seconds: duration.
        goal: ratio with its goal; None: no goal belongs to the check.
    """

    name: str
    verdict: Verdict
    found: str = ""
    figures: dict[str, Any] = dataclasses.field(default_factory=dict)
    errors: tuple[str, ...] = ()
    command: str = ""
    seconds: float = 0.0
    goal: Goal | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the fields by name, and whether the goal is reached."""
        fields = dataclasses.asdict(self)
        return fields | ({"goal": {**fields["goal"], "reached": self.goal.is_reached}} if self.goal else {})


class Part(NamedTuple):
    """A part of the script.

    Args:
        name: word for --only.
        title: heading in the page.
        work: function that yields the checks one after another.
    """

    name: str
    title: str
    work: Callable[[Setting], Iterator[Check]]


def run_part(part: Part, setting: Setting, say: Callable[[str], None]) -> Iterator[Check]:
    """Run a part to its end, also if a check raises an error.

    Args:
        part: part to run.
        setting: settings of the script.
        say: function that shows a line to the user.

    Yields:
        Each check when it is done; an error of the part itself is a failed check, after those that were done before.
        What the time budget leaves out is one that was not run.
    """
    begin = time.monotonic()
    try:
        for check in part.work(setting):
            say(line_of(part, check))
            yield check
    except TimeIsUp as up:
        found = f"the time budget was spent; --only {part.name} runs it"
        left_out = Check(name=f"from {str(up).rpartition('/')[2]} on", verdict="not run", found=found)
        say(line_of(part, left_out))
        yield left_out
    except Exception as error:  # the later parts must run
        lines = traceback.format_exception(error)[-3:]
        told = tuple(line for text in lines for line in text.splitlines())
        failed = Check(name=f"{part.name} itself", verdict="failed", errors=told, seconds=time.monotonic() - begin)
        say(line_of(part, failed))
        yield failed


def line_of(part: Part, check: Check) -> str:
    """Return the line about a check for the terminal."""
    why = check.errors[-1] if check.errors else check.found
    return f"{part.name}: {check.name}: {check.verdict}{f' ({why})' if why else ''}, {check.seconds:.0f} s"
