"""Compares two ranks with two independent copies of one rank, in turns of a few seconds.

    python benchmarks/peers/turns.py --rounds 12 --seconds 5
    python benchmarks/peers/turns.py --rounds 14 --seconds 4 --digits

All programs are started and then stopped (SIGSTOP); in each round every program continues for some seconds, in an
order that changes. If the machine is slow for a minute, it is so for all of them, so the ratios vary less than those of
programs that run one after the other (make bench). Each program has the cores 0 and 1, one for each rank.

`lockstep` is the copies again, where each waits for the other once a step and exchanges no data: no trainer with
synchronous steps can be faster on this machine. `small-mpi` and `small-gloo` are the ranks of `mpi` and `gloo`, which
reduce 16 kB instead of each update's gradients: their loss against `copies` is waiting and negotiation, and that of
`mpi` and `gloo` against them is the transfer of the gradients.
"""

import argparse
import dataclasses
import os
import random
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from programs import HERE, environment, horovodrun, missing_mpi
from running import last_lines

RANK = HERE / "turns_rank.py"
COPIES = [["taskset", "-c", "0"], ["taskset", "-c", "1"]]
SETTLE = 0.7  # seconds after a program continues, in which its caches fill
START = 300.0  # seconds within which a program must begin to train
WARM = 5
# The launchers of each program, and the change that turns_rank.py makes.
PROGRAMS = {
    "copies": (COPIES, ""),
    "lockstep": (COPIES, "lockstep"),
    "small-mpi": ([horovodrun("mpi")], "small"),
    "small-gloo": ([horovodrun("gloo")], "small"),
    "mpi": ([horovodrun("mpi")], ""),
    "gloo": ([horovodrun("gloo")], ""),
}


@dataclasses.dataclass
class Program:
    """Two processes that train, and their launchers."""

    name: str
    folder: Path
    processes: list[subprocess.Popen[bytes]]

    def everyone(self) -> list[psutil.Process]:
        """List the launchers and all their children."""
        found = []
        for process in self.processes:
            try:
                top = psutil.Process(process.pid)
                found += [top, *top.children(recursive=True)]
            except psutil.NoSuchProcess:
                continue
        return found

    def send(self, what: str) -> None:
        """Suspend, resume or kill all processes."""
        for process in self.everyone():
            try:
                getattr(process, what)()
            except psutil.NoSuchProcess:
                continue

    def clocks(self) -> list[list[float]]:
        """Read the beginning of each step of each rank, by the monotonic clock."""
        texts = [path.read_bytes() for path in sorted(self.folder.glob(f"{self.name}.*.clock"))]
        return [list(struct.unpack(f"{len(text) // 8}d", text)) for text in texts]


def main() -> None:
    """Start all, let them take turns, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=5, help=f"duration of a turn, above {SETTLE}")
    parser.add_argument(
        "--digits", action="store_true", help="DCGAN-32 of digits, nf 16, 8 images a rank; else DCGAN-64"
    )
    parser.add_argument("--precision", default="float32", choices=["float32", "mixed_bfloat16"])
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, help="default: all that can run here")
    given = parser.parse_args()
    if given.rounds < 1 or given.seconds <= SETTLE:
        parser.error(f"--rounds must be at least 1, and --seconds above {SETTLE}")
    if not {0, 1} <= os.sched_getaffinity(0):
        parser.error("this process may not use the cores 0 and 1")
    names = choose(given.only, parser)
    count = 8 if given.digits else 16
    data, size, nf = ("digits", 32, 16) if given.digits else ("synthetic", 64, 64)
    words = ["--data", data, "--image-size", str(size), "--nf", str(nf), "--precision", given.precision]
    folder = Path(tempfile.mkdtemp(prefix="hvdgan-turns-"))
    programs: list[Program] = []
    try:
        for name in names:
            programs.append(start(name, words, count, folder))
            wait(programs[-1])
            programs[-1].send("suspend")
        report(take_turns(programs, given.rounds, given.seconds, count))
    finally:
        for program in programs:
            program.send("kill")
            for process in program.processes:
                process.wait()
        shutil.rmtree(folder)


def choose(only: list[str] | None, parser: argparse.ArgumentParser) -> list[str]:
    """Choose the programs to run; those that cannot run are left out, or an error if they were asked for."""
    over_mpi = {"mpi", "small-mpi"}.intersection(only or PROGRAMS)
    why = missing_mpi() if over_mpi else ""
    if why and only:
        parser.error(f"--only {' '.join(sorted(over_mpi))}: {why}; leave it out")
    left_out = over_mpi if why else set()
    for name in sorted(left_out):
        print(f"left out: {name}: {why}", file=sys.stderr)
    return [name for name in only or PROGRAMS if name not in left_out]


def start(name: str, words: list[str], count: int, folder: Path) -> Program:
    """Start a program, which does not end by itself."""
    launchers, change = PROGRAMS[name]
    clock = {"TURNS_CLOCK": str(folder / name), "TURNS_CHANGE": change}
    processes = []
    for index, launcher in enumerate(launchers):
        batch = count * 2 // len(launchers)
        # Only steps: no samples, no checkpoints, and no heartbeats, which would fail while a program is stopped.
        never = [*(f"--{what}-every=0" for what in ("sample", "checkpoint", "check-ranks")), "--peer-timeout=0"]
        run = ["--steps=10000000", f"--global-batch-size={batch}", "--run-dir", str(folder / f"run-{name}-{index}")]
        with (folder / f"{name}.log").open("ab") as log:
            command = [*launcher, sys.executable, str(RANK), "--recipe", "dcgan", *words, *never, *run]
            processes.append(subprocess.Popen(command, env=environment(**clock), stdout=log, stderr=log))
    return Program(name, folder, processes)


def wait(program: Program) -> None:
    """Wait until both ranks of a program train; exit if they do not."""
    end = time.monotonic() + START
    while True:
        clocks = program.clocks()
        if len(clocks) == 2 and min(map(len, clocks)) > WARM:
            return
        if time.monotonic() > end or any(process.poll() is not None for process in program.processes):
            raise SystemExit(f"{program.name} does not train{last_lines([program.folder / f'{program.name}.log'])}")
        time.sleep(0.2)


def take_turns(programs: list[Program], rounds: int, seconds: float, count: int) -> dict[str, list[float]]:
    """Measure the images/s of both ranks of each program in each round."""
    rates: dict[str, list[float]] = {program.name: [] for program in programs}
    for turn in range(rounds):
        for program in random.Random(turn).sample(programs, len(programs)):
            program.send("resume")
            begin = time.monotonic()
            time.sleep(seconds)
            end = time.monotonic()
            program.send("suspend")
            steps = [[at for at in clock if begin + SETTLE < at < end] for clock in program.clocks()]
            if min(map(len, steps)) < 2:
                raise SystemExit(f"{program.name}: no whole step in a turn of {seconds} s; give more --seconds")
            rates[program.name].append(sum(count * (len(each) - 1) / (each[-1] - each[0]) for each in steps))
    return rates


def report(rates: dict[str, list[float]]) -> None:
    """Print a table: images/s, and the ratio to the first program in the same round."""
    first = next(iter(rates))
    print(f"| | images/s, median (range) | of {first}, median (quartiles) |\n|---|---|---|")
    for name, each in rates.items():
        parts = sorted(mine / base for mine, base in zip(each, rates[first], strict=True))
        low, high = parts[len(parts) // 4], parts[-1 - len(parts) // 4]
        middle = f"{statistics.median(each):,.1f} ({min(each):,.1f} to {max(each):,.1f})"
        print(f"| {name} | {middle} | {statistics.median(parts):.2f} ({low:.2f} to {high:.2f}) |")


if __name__ == "__main__":
    main()
