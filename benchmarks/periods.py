"""Measures which part of a real run logging, sampling and checkpointing take at their default periods.

    taskset -c 0 python benchmarks/periods.py

Flags are those of hvdgan.train. Without --recipe it is the small DCGAN on the digits, whose steps are short, for 2,000
steps; flags change it. A larger one:

    --recipe dcgan --data synthetic --image-size 64 --global-batch-size 16 --max-steps 500

Several ranks need one folder, and each prints what it has measured:

    horovodrun -np 2 python benchmarks/periods.py --global-batch-size 16 --run-dir runs/periods

The training loop runs with a clock around its work between two steps, and around the threads that write checkpoints
and grids of samples. Of these threads the CPU seconds count, because on one core the steps wait for them; those that
they take on one core during the work between two steps count once. Times are from the end of the first step to the
end of the run.
"""

from hvdgan.cli import start

start.begin(__name__)

import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from hvdgan.checkpoints import checkpoint
from hvdgan.train import main as train
from hvdgan.training.loop import Loop
from hvdgan.training.observations import Observations
from hvdgan.training.periodic import PeriodicTasks
from hvdgan.training.samples import Sampler

DEFAULTS = {
    "--recipe": "dcgan",
    "--data": "digits",
    "--image-size": "32",
    "--nf": "16",
    "--global-batch-size": "8",
    "--max-steps": "2000",
}
GOAL = 0.02
seconds: Counter[str] = Counter()


def main() -> int:
    """Train, and print the parts; returns 0 if they are under the goal, 1 if not, else the exit code of the run."""
    clock(Loop, "step", "steps", time.perf_counter)
    clock(Observations, "log", "logging", time.perf_counter)
    writers = Writers()
    alone = len(os.sched_getaffinity(0)) == 1
    clock(PeriodicTasks, "work", "between", lambda: time.perf_counter() - (writers.seconds() if alone else 0.0))
    writers.follow(checkpoint, "write")
    writers.follow(Sampler, "save")
    given = sys.argv[1:]
    named = {word.partition("=")[0] for word in given}
    if not named & {"--recipe"}:
        given += [word for flag, value in DEFAULTS.items() if flag not in named for word in (flag, value)]
    with tempfile.TemporaryDirectory(prefix="hvdgan-periods-") as folder:
        code = train(given if "--run-dir" in named else [*given, "--run-dir", f"{folder}/run"])
    if code:
        return code
    total = seconds["steps"] + seconds["between"]
    if not total:
        print("nothing was measured: no step was trained")
        return 0
    seconds["writing"] = writers.seconds()
    parts = {
        "logging": seconds["logging"],
        "sampling, and copying for checkpoints": seconds["between"] - seconds["logging"],
        "writing checkpoints and grids (CPU of their threads)": seconds["writing"],
    }
    for name, each in {**parts, "together": sum(parts.values())}.items():
        print(f"{name}: {each:.3f} s, {each / total:.2%} of {total:.1f} s")
    reached = sum(parts.values()) < GOAL * total
    print(f"goal: under {GOAL:.0%}: {'reached' if reached else 'MISSED'}")
    return 0 if reached else 1


class Writers:
    """The threads that write."""

    def __init__(self) -> None:
        self._ended = 0.0
        self._begun: dict[int, float] = {}
        """CPU seconds that each thread had taken when it began to write, by the number of its clock"""
        self._lock = threading.Lock()

    def seconds(self) -> float:
        """CPU seconds that all of them have taken so far."""
        with self._lock:
            return self._ended + sum(time.clock_gettime(clock) - begin for clock, begin in self._begun.items())

    def follow(self, owner: Any, name: str) -> None:
        """Count the time that a function takes, which a thread calls."""
        plain = getattr(owner, name)

        def timed(*arguments: Any, **more: Any) -> Any:
            own = time.pthread_getcpuclockid(threading.get_ident())
            with self._lock:
                self._begun[own] = time.clock_gettime(own)
            try:
                return plain(*arguments, **more)
            finally:
                with self._lock:
                    self._ended += time.clock_gettime(own) - self._begun.pop(own)

        setattr(owner, name, timed)


def clock(owner: Any, name: str, what: str, now: Callable[[], float]) -> None:
    """Count the time that a function takes; steps count from the second on, because the first one compiles."""
    plain = getattr(owner, name)

    def timed(*arguments: Any, **more: Any) -> Any:
        begin = now()
        try:
            return plain(*arguments, **more)
        finally:
            seconds[what] += now() - begin if what != "steps" or "begun" in seconds else 0.0
            if what == "steps":
                seconds["begun"] = 1

    setattr(owner, name, timed)


if __name__ == "__main__":
    sys.exit(main())
