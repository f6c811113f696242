"""Runs all parts one after another; writes result.json after each check, and page.md after each part.

benchmarks/gpu.sh starts it.
"""

import argparse
import contextlib
import dataclasses
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from gpu import build, device_tests, equality, machine, options, page, peers, recipes, resume, scaling
from gpu.check import Check, Part, run_part
from gpu.setting import Setting, hosts_of_allocation, known_recipes, numbers_of_ranks
from hvdgan.cli.files.outputs import write_json, write_text

PARTS = (
    Part("build", "All ranks together", build.checks),
    Part("equality", "GPU and CPU, N ranks and one", equality.checks),
    Part("resume", "Interrupted and uninterrupted", resume.checks),
    Part("tests", "Tests that need a GPU", device_tests.checks),
    Part("peers", "Other frameworks", peers.checks),
    Part("scaling", "Ranks and independent copies", scaling.checks),
    Part("recipes", "Recipes in each precision", recipes.checks),
    Part("options", "Options on all ranks", options.checks),
)
"""what tells most in the shortest time comes first, because a machine may be had for some minutes only"""
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")
_CPU_RANKS = 2
_JSON, _PAGE = "result.json", "page.md"


class Parser(argparse.ArgumentParser):
    """Reports a mistake in one line."""

    def error(self, message: str) -> NoReturn:
        """Report a mistake as argparse does, without the usage."""
        sys.stderr.write(f"benchmarks/gpu.sh: {message}\n")
        sys.exit(2)


def main(words: Sequence[str]) -> int:
    """Check and measure.

    Args:
        words: command line.

    Returns:
        The exit code: 0 if all that ran passed, 1 if something failed, 130 if it was interrupted.
    """
    begin = time.monotonic()
    parser = arguments()
    given = parser.parse_args(words)
    _refuse(parser, given)
    doctor = build.examine(given.cpu)
    setting = _setting(given, begin, gloo=build.uses_gloo(doctor))
    if why := build.problem(doctor, setting.most, cpu=given.cpu):
        parser.error(why)
    setting.out.mkdir(parents=True)
    with _interruptible():
        return _run(setting, _chosen(given), doctor, words)


def arguments() -> Parser:
    """Return the parser of the command line; the comment in benchmarks/gpu.sh is its help."""
    parser = Parser(prog="benchmarks/gpu.sh", add_help=False, allow_abbrev=False)
    parser.add_argument("--gpus", type=int, required=True)
    parser.add_argument("--out", type=Path, default=Path(time.strftime("gpu-%Y%m%d-%H%M%S")))
    parser.add_argument("--only", type=_list)
    parser.add_argument("--recipe", type=_list, default=tuple(known_recipes()))
    parser.add_argument("--precision", type=_list, default=PRECISIONS)
    parser.add_argument("--timeout", type=float, default=3600.0)
    parser.add_argument("--time-budget", type=float)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--quick", action="store_true")
    return parser


def _list(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _refuse(parser: Parser, given: argparse.Namespace) -> None:
    """Refuse mistakes before anything is run."""
    choices = {"--only": [part.name for part in PARTS], "--precision": PRECISIONS}
    for flag, known in choices.items():
        for word in getattr(given, flag.removeprefix("--")) or ():
            if word not in known:
                parser.error(f"{flag} {word}: expected some of {', '.join(known)}")
    for flag, seconds in (("--timeout", given.timeout), ("--time-budget", given.time_budget)):
        if seconds is not None and not seconds > 0:
            parser.error(f"{flag} {seconds}: expected a number of seconds above 0")
    if given.out.exists():
        parser.error(f"--out {given.out}: exists already; name a new folder")
    if not (given.gpus or given.cpu):
        parser.error(
            "there is no GPU here (nvidia-smi names none, or CUDA_VISIBLE_DEVICES hides it); --cpu tests the script"
        )


def _setting(given: argparse.Namespace, begin: float, *, gloo: bool) -> Setting:
    nodes = hosts_of_allocation()
    here = max(1, _CPU_RANKS // nodes) if given.cpu else given.gpus
    return Setting(
        out=given.out.absolute(),
        cpu=given.cpu,
        quick=given.quick,
        ranks=numbers_of_ranks(here, nodes),
        here=here,
        nodes=nodes,
        gloo=gloo,
        recipes=given.recipe,
        precisions=given.precision,
        timeout=given.timeout,
        time_budget=given.time_budget,
        begin=begin,
    )


def _chosen(given: argparse.Namespace) -> list[Part]:
    return [part for part in PARTS if not given.only or part.name in given.only]


def _run(setting: Setting, parts: Sequence[Part], doctor: dict[str, Any], words: Sequence[str]) -> int:
    """Run the parts; what is there is written after each check, and if the script is interrupted."""
    settings = dataclasses.asdict(setting)
    del settings["begin"]  # it means nothing outside of this process
    facts: dict[str, Any] = {
        "command": shlex.join(["benchmarks/gpu.sh", *(word for word in words if not word.startswith("--gpus="))]),
        "settings": {**settings, "out": setting.out.name},
        "machine": machine.facts(setting),
        "doctor": doctor,
        "complete": False,
        "page_error": "",
        "parts": [],
    }
    try:
        for part in parts:
            say(f"== {part.title}")
            done: dict[str, Any] = {"name": part.name, "title": part.title, "checks": []}
            facts["parts"].append(done)
            checks: dict[str, Check] = {}
            for check in run_part(part, setting, say):
                checks[check.name] = check
                done["checks"] = [each.as_json() for each in checks.values()]
                _write(setting, facts)
            facts["complete"] = part is parts[-1]
            _write(setting, facts, with_page=True)
    except KeyboardInterrupt:
        _write(setting, facts, with_page=True)
        say("interrupted")
        return 130
    say(f"{page.sentence(facts)}: {setting.out / (_JSON if facts['page_error'] else _PAGE)}")
    failed = any(check["verdict"] == "failed" for part in facts["parts"] for check in part["checks"])
    return int(bool(facts["page_error"]) or failed)


def _write(setting: Setting, facts: dict[str, Any], *, with_page: bool = False) -> None:
    """Write the results. A page that cannot be made is reported, and does not stop the later parts."""
    facts["seconds"] = setting.seconds
    if with_page:
        facts["page_error"] = ""
        try:
            write_text(setting.out / _PAGE, page.make(facts))
        except Exception as error:
            facts["page_error"] = "".join(traceback.format_exception(error)[-3:])
            say(f"page.md cannot be made: {error!r}; send result.json alone")
    write_json(setting.out / _JSON, facts)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Treat the end of a Slurm job or of a terminal as Ctrl-C; under nohup a closed terminal is still ignored."""
    taken = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def say(line: str) -> None:
    """Show a line to the user."""
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
