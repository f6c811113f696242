"""Compares hvdgan with Keras, MirroredStrategy and PyTorch's DDP on one rank and on the ranks of one host.

The programs are those of benchmarks/peers. They take turns, so that a slow minute of the machine affects all of them.
"""

import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import running
from programs import HERE, MADE, TORCH, trainer
from work import Work

from gpu.check import Check, Goal
from gpu.processes import Done
from gpu.setting import Setting, launcher

INSTALL = "HVDGAN_GPU=1 benchmarks/peers/setup.sh"
LOCAL_BATCH_SIZE = 128
GOAL = 1.1
"""part of the rate of PyTorch's DDP over NCCL that hvdgan should reach"""
_SECONDS_OF_TORCH = 120


class Program(NamedTuple):
    """A program to measure.

    Args:
        name: name in the page.
        ranks: number of ranks, or of replicas in one process.
        command: function of the work that returns the words of the command.
        needs_torch: True if it runs in .venv-peers.
    """

    name: str
    ranks: int
    command: Callable[[Work], list[str]]
    needs_torch: bool = False


def checks(setting: Setting) -> Iterator[Check]:
    """Measure all programs in float32 and in mixed_bfloat16, and compare hvdgan with DDP."""
    without_torch = why_no_torch(setting.cpu)
    for precision in ("float32", "mixed_bfloat16"):
        if precision not in setting.precisions:
            continue
        programs = programs_of(setting)
        runnable = [program for program in programs if not (program.needs_torch and without_torch)]
        yield from (
            Check(name=f"{program.name}, {precision}", verdict="not run", found=without_torch)
            for program in programs
            if program not in runnable
        )
        yield from _measured(setting, precision, runnable)


def programs_of(setting: Setting) -> list[Program]:
    """List the programs: those of one process, and those of the ranks of one host."""
    ranks = max(count for count in setting.ranks if count <= setting.here)
    one, several = ([*launcher(count, 1, "hvdgan.train")] for count in (1, ranks))
    found = [
        Program("Keras", 1, _script("keras_loop.py")),
        Program("PyTorch", 1, _script("torch_loop.py", TORCH), needs_torch=True),
        Program("hvdgan", 1, _train(one, 1)),
    ]
    if ranks == 1:
        return found
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), str(HERE / "torch_ddp.py")]
    return [
        *found,
        Program(f"MirroredStrategy x {ranks}", ranks, _script("mirrored.py")),
        Program(f"PyTorch DDP x {ranks}", ranks, lambda work: [str(TORCH), *run, *work.arguments()], needs_torch=True),
        Program(f"hvdgan x {ranks}", ranks, _train(several, ranks)),
    ]


def _script(name: str, python: str | Path = sys.executable) -> Callable[[Work], list[str]]:
    return lambda work: [str(python), str(HERE / name), *work.arguments()]


def _train(words: list[str], ranks: int) -> Callable[[Work], list[str]]:
    """Return a function that puts the flags of the work behind the words that start hvdgan.train."""

    def command(work: Work) -> list[str]:
        ((given, _),) = trainer([], ranks)(work)
        return [*words, *given[given.index("hvdgan.train") + 1 :]]

    return command


def why_no_torch(cpu: bool) -> str:
    """Return the reason why PyTorch cannot be measured, with the command that helps; empty if it can.

    Args:
        cpu: True if it shall compute on the CPU.
    """
    if not (TORCH.exists() and MADE.is_file() and MADE.stat().st_size):
        command = INSTALL.removeprefix("HVDGAN_GPU=1 ") if cpu else INSTALL
        return f"there is no .venv-peers with PyTorch; {command} makes it"
    code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    try:
        if cpu or subprocess.run([TORCH, "-c", code], timeout=_SECONDS_OF_TORCH, check=False).returncode == 0:
            return ""
    except (OSError, subprocess.TimeoutExpired):
        pass
    return f"the PyTorch of .venv-peers sees no GPU; {INSTALL} makes it with CUDA"


def work_of(setting: Setting, precision: str, ranks: int, out: Path) -> Work:
    """Return the sizes of the DCGAN and the number of steps.

    Args:
        setting: settings of the script.
        precision: name of the precision.
        ranks: number of ranks or replicas.
        out: new folder of the run.
    """
    size, nf, batch = (32, 2, 2) if setting.small else (64, 64, LOCAL_BATCH_SIZE)
    warm_up, steps = (2, 4) if setting.quick else (50, 200)
    return Work(
        image_size=size,
        channels=3,
        nf=nf,
        batch_size=batch,
        precision=precision,
        warm_up=warm_up,
        steps=steps,
        out=out,
        device="cpu" if setting.cpu else "gpu",
        replicas=ranks,
    )


def _measured(setting: Setting, precision: str, programs: list[Program]) -> Iterator[Check]:
    """Run all programs in turn, and yield a check of a program after each of its runs, so that none is lost."""
    repeats = 1 if setting.quick else 3
    rates: dict[str, list[float]] = {program.name: [] for program in programs}
    seconds = dict.fromkeys(rates, 0.0)
    errors: dict[str, tuple[str, ...]] = {}
    for repeat in range(repeats):
        for program in programs:
            name = f"{program.name.replace(' ', '-')}-{precision}-{repeat}"
            work = work_of(setting, precision, program.ranks, setting.out / "runs" / "peers" / name)
            work.out.mkdir(parents=True)
            done = setting.run(f"peers/{name}", program.command(work))
            seconds[program.name] += done.seconds
            try:
                rates[program.name].append(_rate(program, work, done))
            except running.Failed as failure:
                errors[program.name] = done.errors or (str(failure),)
            found = rates[program.name]
            yield Check(
                name=f"{program.name}, {precision}",
                verdict="failed" if program.name in errors else "passed",
                found=f"{statistics.median(found):,.0f} images/s" if found else "",
                figures={"ranks": program.ranks, "images_per_sec": found},
                errors=errors.get(program.name, ()),
                command=done.words,
                seconds=seconds[program.name],
            )
        yield from _compared(setting, precision, rates)


def _rate(program: Program, work: Work, done: Done) -> float:
    """Return the images/s of all ranks together."""
    if done.code != 0:
        raise running.Failed(str(done.code))
    ends = (running.hvdgan_ends if program.name.startswith("hvdgan") else running.peer_ends)(work)
    return running.steps_per_second([ends], work.warm_up) * work.batch_size * program.ranks


def _compared(setting: Setting, precision: str, rates: dict[str, list[float]]) -> Iterator[Check]:
    """Compare hvdgan with each other program of the same number of ranks, within each repeat."""
    for name, theirs in rates.items():
        ours = rates.get(f"hvdgan x {name.rpartition(' x ')[2]}" if " x " in name else "hvdgan", [])
        if name.startswith("hvdgan") or not theirs or len(ours) != len(theirs):
            continue
        ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
        is_meant = name.startswith("PyTorch DDP") and not setting.small
        yield Check(
            name=f"hvdgan against {name}, {precision}",
            verdict="passed",
            found=f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) times its images/s",
            figures={"ratios": ratios},
            goal=Goal(statistics.median(ratios), GOAL) if is_meant else None,
        )
