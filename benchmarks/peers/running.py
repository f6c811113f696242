"""Starting a program, watching its memory, ending it, and reading what it has measured."""

import dataclasses
import functools
import json
import math
import os
import struct
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from programs import KINDS, Program, environment
from tensorboard.compat.proto import event_pb2
from work import Work

SECONDS_TO_LOOK = 0.5


class Failed(Exception):
    """A program did not run as it should; says why."""


def measure(program: Program, work: Work, seconds: float) -> dict[str, Any]:
    """Run a program once.

    Args:
        program: to run.
        work: its out is a folder for this run, which is made.
        seconds: after which it is ended.

    Returns:
        images_per_sec over all copies, start_seconds from the command to the end of the first step, and peak_mib of
        the largest rank.

    Raises:
        Failed: it failed, or took too long, or its ranks do not hold the same weights in the end.
    """
    copies = []
    for copy in range(program.copies):
        out = work.out / f"copy-{copy}"
        out.mkdir(parents=True)
        # Copies are not ready at the same moment, and are timed while all are at it.
        copies.append(dataclasses.replace(work, out=out, steps=work.steps * program.copies))
    begun = time.time()
    peak = run(program, copies, seconds)
    kind = KINDS[program.kind]
    ends = [(hvdgan_ends if program.kind.startswith("hvdgan") else peer_ends)(copy) for copy in copies]
    return {
        "images_per_sec": steps_per_second(ends, work.warm_up) * work.batch_size * kind.ranks,
        "start_seconds": max(each[1] for each in ends) - begun,
        "peak_mib": peak / 2**20,
    }


def run(program: Program, copies: list[Work], seconds: float) -> int:
    """Start all copies and wait for them; returns the largest peak memory of a rank, in bytes."""
    cores = sorted(os.sched_getaffinity(0))
    kind = KINDS[program.kind]
    processes, logs, peak = [], [], 0
    try:
        for number, work in enumerate(copies):
            mine = {cores[number]} if kind.ranks == 1 else set(cores[:2])
            for part, (words, more) in enumerate(kind.start(work)):
                logs.append(work.out.parent / f"log-{number}-{part}.txt")
                with logs[-1].open("wb") as log:
                    processes.append(
                        psutil.Popen(
                            words,
                            env=environment(**more),
                            cwd=work.out,
                            stdin=subprocess.DEVNULL,
                            stdout=log,
                            stderr=subprocess.STDOUT,
                            start_new_session=True,
                            preexec_fn=functools.partial(os.sched_setaffinity, 0, mine),
                        )
                    )
        until = time.monotonic() + seconds
        while any(process.poll() is None for process in processes):
            if time.monotonic() > until:
                raise Failed(f"did not end in {seconds:.0f} s{last_lines(logs)}")
            peak = max(peak, *(peak_memory(process) for process in processes))
            time.sleep(SECONDS_TO_LOOK)
    finally:
        end(processes)
    if any(process.returncode for process in processes):
        raise Failed(f"exit codes {[process.returncode for process in processes]}{last_lines(logs)}")
    return peak


def peak_memory(launcher: psutil.Popen) -> int:
    """Bytes that the largest Python process below and including this one has had resident, launchers apart."""
    peak = 0
    try:
        for process in [launcher, *launcher.children(recursive=True)]:
            words = process.cmdline()[:4]
            trains = any(word.endswith((".py", "hvdgan.train")) for word in words[1:3])
            if words and "python" in words[0] and trains:
                status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
                high = next((line for line in status.splitlines() if line.startswith("VmHWM:")), "VmHWM: 0 kB")
                peak = max(peak, 1024 * int(high.split()[1]))
    except (psutil.Error, OSError):
        pass  # one of them has just ended
    return peak


def end(processes: list[psutil.Popen]) -> None:
    """End whatever still runs: politely first, since launchers then end their ranks."""
    alive = [process for process in processes if process.poll() is None]
    below = [child for process in alive for child in process.children(recursive=True)]
    for process in alive:
        process.terminate()
    _, left = psutil.wait_procs([*alive, *below], timeout=10)
    for process in left:
        process.kill()
    psutil.wait_procs(left, timeout=10)


def last_lines(logs: list[Path]) -> str:
    """What the programs have said last, indented."""
    lines = [line for log in logs for line in log.read_text(errors="replace").splitlines()[-12:]]
    return "".join(f"\n    {line}" for line in lines)


def steps_per_second(copies: list[dict[int, float]], warm_up: int) -> float:
    """Of all copies together, in the time in which all train.

    Args:
        copies: for each, when it had done so many steps, in seconds of the clock.
        warm_up: steps that are not counted.

    Raises:
        Failed: there is no such time.
    """
    begin = max(ends[warm_up] for ends in copies)
    end = min(max(ends.values()) for ends in copies)
    if begin >= end:
        raise Failed("one copy had ended before the other was warm; take more --steps")
    done = [np.diff(np.interp([begin, end], list(ends.values()), list(ends)))[0] for ends in copies]
    return float(sum(done)) / (end - begin)


def peer_ends(work: Work) -> dict[int, float]:
    """When so many steps had been done, in seconds of the clock, on the slowest rank."""
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(work.out.glob("rank-*.json"))]
    if not reports:
        raise Failed(f"no rank has written its report in {work.out}")
    if any(report["weights"] != reports[0]["weights"] for report in reports):
        raise Failed("the ranks do not hold the same weights in the end")
    ends = zip(*(report["ends"] for report in reports), strict=True)
    return {number: max(times) for number, times in enumerate(ends, start=1)}


def hvdgan_ends(work: Work) -> dict[int, float]:
    """The same of hvdgan, from when its records were written: what it does between steps is counted as well.

    The end of the first step is that of the warm-up less its other steps, taken to be as long as later ones.
    """
    records = [json.loads(line) for line in (work.out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    losses = [record.get(f"{name}/loss") for record in records for name in ("generator", "discriminator")]
    # A loss is missing where every step since the last record was skipped.
    if any(loss is None or not math.isfinite(loss) for loss in losses):
        raise Failed("a loss is not finite")
    written = times_of_records(work.out / "tensorboard")
    warm, last = written[work.warm_up], written[work.warm_up + work.steps]
    return {1: warm - (work.warm_up - 1) * (last - warm) / work.steps, **written}


def times_of_records(folder: Path) -> dict[int, float]:
    """When each step's metrics were written, in seconds of the clock; without TensorFlow, which would take cores."""
    times: dict[int, float] = {}
    for path in sorted(folder.glob("events.*")):
        left = path.read_bytes()
        while left:
            # A record: the length of its content, a checksum, the content, a checksum.
            (length,) = struct.unpack("<Q", left[:8])
            event = event_pb2.Event.FromString(left[12 : 12 + length])
            if event.summary.value:
                times.setdefault(event.step, event.wall_time)
            left = left[16 + length :]
    return times
