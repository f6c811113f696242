"""Compares hvdgan with other programs on the same DCGAN: each runs in turn, several times.

make bench                                     about 25 minutes on two quiet cores; bench-TIME.json and .png hold it
make bench ARGS="--repeats 5 --json five.json --plot five.png"
make bench ARGS="--only 'hvdgan*,ddp*' --repeats 3"              some programs; --list names all
"""

import argparse
import datetime
import fnmatch
import importlib.util
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NoReturn

import report
from programs import DEFAULT, PROGRAMS, Program, missing
from running import Failed, measure
from work import Work

DIGITS_STEPS = 40
"""factor for the steps of the small network, each of which takes a fortieth of the time"""


def main() -> int:
    """Run, print, write; 0 if every program ran, 1 if one failed, 2 for a mistake on the command line."""
    given = arguments()
    if given.list:
        return list_programs()
    name_files(given)
    programs = choose(given)
    folder = Path(tempfile.mkdtemp(prefix="hvdgan-peers-")) if given.runs is None else given.runs.absolute()
    runs: report.Runs = {program.name: [] for program in programs}
    failures: dict[str, str] = {}
    begun = datetime.datetime.now(datetime.UTC)
    for repeat in range(given.repeats):
        for place, program in enumerate(programs):
            work = sizes(given, program, folder / f"repeat-{repeat}" / program.name)
            print(f"[{repeat + 1}/{given.repeats}, {place + 1}/{len(programs)}] {program.name}", end=" ", flush=True)
            try:
                measured = measure(program, work, given.timeout)
                runs[program.name].append({"repeat": repeat, **measured})
                print("{images_per_sec:.1f} images/s, {start_seconds:.1f} s, {peak_mib:.0f} MiB".format(**measured))
            except Failed as failure:
                failures[program.name] = str(failure)
                print(f"failed: {failure}", flush=True)
            write(given, begun, runs, failures)
    done = {name: each for name, each in runs.items() if each}
    print(
        f"\n{given.steps} steps after {given.warm_up}, {given.repeats} repeat(s), {machine()}\n\n{report.table(done)}"
    )
    if given.plot and done:
        report.plot(done, given.plot)
    print(f"\nfigures: {given.json}{f', {given.plot}' if given.plot and done else ''}\nlogs: {folder}")
    return 1 if failures else 0


class Parser(argparse.ArgumentParser):
    """Reports a mistake in one line."""

    def error(self, message: str) -> NoReturn:
        """Report a mistake as argparse does, without the usage."""
        sys.stderr.write(f"error: {message}; see --help\n")
        sys.exit(2)


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="names or patterns of programs, comma-separated; default: those of the goals")
    parser.add_argument("--list", action="store_true", help="list all programs, and why some cannot run here")
    parser.add_argument("--repeats", type=positive, default=2, help="rounds through all programs (default: 2)")
    parser.add_argument(
        "--warm-up",
        type=positive,
        default=5,
        help=f"steps before the measurement (default: 5; {DIGITS_STEPS} times this for digits)",
    )
    parser.add_argument(
        "--steps",
        type=positive,
        default=15,
        help=f"measured steps (default: 15; {DIGITS_STEPS} times this for digits)",
    )
    parser.add_argument("--nf", type=positive, help="width of the networks (default: 64; digits: 16)")
    parser.add_argument("--batch-size", type=positive, help="images per rank (default: 16; digits: 8)")
    parser.add_argument(
        "--timeout", type=positive, default=300, metavar="SECONDS", help="limit of a run (default: 300)"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="every run, the summary and the goals (default: bench-TIME.json)"
    )
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE.png",
        help="plot of the medians (default: bench-TIME.png, with matplotlib)",
    )
    parser.add_argument(
        "--runs", type=Path, metavar="FOLDER", help="new folder for logs and runs; default: a temporary one"
    )
    given = parser.parse_args()
    given.fail = parser.error
    if given.runs and given.runs.exists():
        parser.error(f"--runs {given.runs}: exists; name a new folder")
    return given


def name_files(given: argparse.Namespace) -> None:
    """Choose the output files that were not given; refuse those that cannot be written."""
    has_matplotlib = importlib.util.find_spec("matplotlib") is not None
    if given.plot and not has_matplotlib:
        given.fail("--plot needs matplotlib, which is not installed")
    if given.plot and given.plot.suffix.lower() != ".png":
        given.fail(f"--plot {given.plot}: expected a name that ends in .png")
    stem = time.strftime("bench-%Y%m%d-%H%M%S")
    given.json = given.json or Path(f"{stem}.json")
    given.plot = given.plot or (Path(f"{stem}.png") if has_matplotlib else None)
    for path in (given.json, given.plot):
        if path and not path.absolute().parent.is_dir():
            given.fail(f"{path}: there is no folder {path.absolute().parent}")
        if path and path.exists():
            given.fail(f"{path}: exists; name a new file")
    if given.plot and given.plot.resolve() == given.json.resolve():
        given.fail(f"--plot {given.plot}: --json is the same file; name another one")


def positive(text: str) -> int:
    """Parse a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 1")
    return int(text)


def list_programs() -> int:
    """List the programs."""
    for program in PROGRAMS.values():
        why = missing(program)
        print(f"{'*' if program.name in DEFAULT else ' '} {program.name}{f' (left out: {why})' if why else ''}")
    print("* by default")
    return 0


def choose(given: argparse.Namespace) -> list[Program]:
    """Choose the programs to run, in the order of the table, and print those that are left out."""
    patterns = given.only.split(",") if given.only else DEFAULT
    for pattern in patterns:
        if not fnmatch.filter(PROGRAMS, pattern.strip()):
            given.fail(f"--only {pattern}: no such program; --list names them")
    chosen = [p for name, p in PROGRAMS.items() if any(fnmatch.fnmatch(name, each.strip()) for each in patterns)]
    left_out = {program.name: why for program in chosen if (why := missing(program))}
    for name, why in left_out.items():
        print(f"left out: {name}: {why}")
    if len(left_out) == len(chosen):
        given.fail("none of these programs can run here")
    if len(os.sched_getaffinity(0)) < 2 and any(program.ranks > 1 for program in chosen):
        given.fail("two ranks of one core each need two cores; this process may use one")
    return [program for program in chosen if program.name not in left_out]


def sizes(given: argparse.Namespace, program: Program, out: Path) -> Work:
    """Choose the size of the DCGAN, and the number of steps, of a program."""
    longer = DIGITS_STEPS if program.digits else 1
    return Work(
        image_size=32 if program.digits else 64,
        channels=1 if program.digits else 3,
        nf=given.nf or (16 if program.digits else 64),
        batch_size=given.batch_size or (8 if program.digits else 16),
        precision=program.precision,
        warm_up=given.warm_up * longer,
        steps=given.steps * longer,
        out=out,
    )


def machine() -> str:
    """Describe the machine."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores of {model}, load {os.getloadavg()[0]:.1f}, {time.strftime('%Y-%m-%d')}"


def write(given: argparse.Namespace, begun: datetime.datetime, runs: report.Runs, failures: dict[str, str]) -> None:
    """Write all figures so far."""
    done = {name: each for name, each in runs.items() if each}
    known: dict[str, Any] = {
        "begun": begun.isoformat(timespec="seconds"),
        "machine": machine(),
        "settings": {name: getattr(given, name) for name in ("repeats", "warm_up", "steps", "nf", "batch_size")},
        "runs": runs,
        "summary": report.summarise(done),
        "goals": report.judge(done),
        "failures": failures,
    }
    given.json.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
