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
    """A program failed; the message says why."""


def measure(program: Program, work: Work, seconds: float) -> dict[str, Any]:
    """Run a program once.

    Args:
        program: program to run.
        work: settings of the run; `out` is a new folder.
        seconds: time limit, after which the program is ended.

    Returns:
        images_per_sec over all copies, start_seconds from the command to the end of the first step, and peak_mib of
        the largest rank.

    Raises:
        Failed: the program failed, took too long, or its ranks do not hold the same weights at the end.
    """
    copies = []
    for copy in range(program.copies):
        out = work.out / f"copy-{copy}"
        out.mkdir(parents=True)
        # Copies do not start at the same moment; they are measured while all of them train.
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
    """Return the largest peak memory in bytes of a process and its children that train; launchers do not count."""
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
    """End all running processes: with SIGTERM first, on which launchers end their ranks."""
    alive = [process for process in processes if process.poll() is None]
    below = [child for process in alive for child in process.children(recursive=True)]
    for process in alive:
        process.terminate()
    _, left = psutil.wait_procs([*alive, *below], timeout=10)
    for process in left:
        process.kill()
    psutil.wait_procs(left, timeout=10)


def last_lines(logs: list[Path]) -> str:
    """Return the last lines of the logs, indented."""
    lines = [line for log in logs for line in log.read_text(errors="replace").splitlines()[-12:]]
    return "".join(f"\n    {line}" for line in lines)


def steps_per_second(copies: list[dict[int, float]], warm_up: int) -> float:
    """Compute the rate of all copies together, while all of them train.

    Args:
        copies: times in seconds at which each copy had done a number of steps.
        warm_up: number of first steps that are not measured.

    Raises:
        Failed: there is no time at which all copies train.
    """
    begin = max(ends[warm_up] for ends in copies)
    end = min(max(ends.values()) for ends in copies)
    if begin >= end:
        raise Failed("one copy had ended before the other was warm; take more --steps")
    done = [np.diff(np.interp([begin, end], list(ends.values()), list(ends)))[0] for ends in copies]
    return float(sum(done)) / (end - begin)


def peer_ends(work: Work) -> dict[int, float]:
    """Read the times in seconds at which the slowest rank had done each number of steps."""
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(work.out.glob("rank-*.json"))]
    if not reports:
        raise Failed(f"no rank has written its report in {work.out}")
    if any(report["weights"] != reports[0]["weights"] for report in reports):
        raise Failed("the ranks do not hold the same weights in the end")
    ends = zip(*(report["ends"] for report in reports), strict=True)
    return {number: max(times) for number, times in enumerate(ends, start=1)}


def hvdgan_ends(work: Work) -> dict[int, float]:
    """Read the same of hvdgan from the times of its records, which include the work between steps.

    The end of the first step is estimated: the warm-up's end minus its other steps, at the duration of later ones.
    """
    records = [json.loads(line) for line in (work.out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    losses = [record.get(f"{name}/loss") for record in records for name in ("generator", "discriminator")]
    # A loss is missing if every step since the last record was skipped.
    if any(loss is None or not math.isfinite(loss) for loss in losses):
        raise Failed("a loss is not finite")
    written = times_of_records(work.out / "tensorboard")
    warm, last = written[work.warm_up], written[work.warm_up + work.steps]
    return {1: warm - (work.warm_up - 1) * (last - warm) / work.steps, **written}


def times_of_records(folder: Path) -> dict[int, float]:
    """Read the time in seconds of each step's metrics; without TensorFlow, which would take cores."""
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
