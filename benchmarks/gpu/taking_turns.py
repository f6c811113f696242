"""Runs a program whose steps wait for their turn: python taking_turns.py SCRIPT [arguments], or train [arguments].

The environment variable TURNS has the settings as JSON. Programs that take turns live at the same time, so that each is
started once and measured several times, in alternation with the others. Only one of them uses the GPU at any moment: a
library that tries kernels in the first steps would choose by what the others do.

SCRIPT is one of benchmarks/peers, which has its steps done by work.train(). train is hvdgan's, whose loop does them
with all that is due between them.
"""

import contextlib
import gzip
import itertools
import json
import os
import runpy
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

FIRST = 3
"""steps in which libraries choose kernels"""


class Turns:
    """The program's side of the files by which in_turn.py tells who is to work.

    Args:
        folder: folder of the files that all programs share.
        name: name of the program.
        count: number of turns.
        warm_up: steps at the beginning of a turn that are not measured, so that the GPU's clock rises.
        steps: measured steps of a turn.
        profiled: steps after the last turn of which a trace of the GPU is taken; 0: none.
    """

    def __init__(self, *, folder: str, name: str, count: int, warm_up: int, steps: int, profiled: int) -> None:
        self.folder, self.name, self.count = Path(folder), name, count
        self.warm_up, self.steps, self.profiled = warm_up, steps, profiled

    def wait(self, turn: int) -> None:
        """Say that this program is ready for a turn, of which number 0 is that of the first steps, and wait for it."""
        (self.folder / f"{self.name}.ready.{turn}").touch()
        while not (self.folder / f"{self.name}.go.{turn}").exists():
            time.sleep(0.001)

    def report(self, turn: int, **facts: Any) -> None:
        """Say that a turn has ended, and what was found."""
        path = self.folder / f"{self.name}.done.{turn}"
        path.with_suffix(".half").write_text(json.dumps(facts), encoding="utf-8")
        path.with_suffix(".half").rename(path)

    def __iter__(self) -> Iterator[tuple[int, str]]:
        """Yield numbers of steps to do, each with what they are for; when the next is asked for, they have ended."""
        self.wait(0)
        yield FIRST, "the libraries choose kernels"
        forget_peak()
        self.report(0)
        for turn in range(1, self.count + 1):
            self.wait(turn)
            yield self.warm_up, "the clock rises"
            begin = time.perf_counter()
            yield self.steps, "measured"
            self.report(turn, seconds=time.perf_counter() - begin, steps=self.steps, peak_bytes=peak_bytes())
        if self.profiled:
            self.wait(self.count + 1)
            yield self.warm_up, "the clock rises"
            with profiled() as found:
                yield self.profiled, "profiled"
            self.report(self.count + 1, steps=self.profiled, **found)


def peak_bytes() -> int:
    """Peak memory of the GPU that this program's library has given out."""
    if "torch" in sys.modules:
        import torch

        return int(torch.cuda.max_memory_allocated()) if torch.cuda.is_available() else 0
    import tensorflow as tf

    if not tf.config.get_visible_devices("GPU"):
        return 0
    return int(tf.config.experimental.get_memory_info("GPU:0")["peak"])


def forget_peak() -> None:
    """Begin to measure the peak memory: the first steps need more."""
    if "torch" in sys.modules:
        import torch

        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        return
    import tensorflow as tf

    if tf.config.get_visible_devices("GPU"):
        tf.config.experimental.reset_memory_stats("GPU:0")


@contextlib.contextmanager
def profiled() -> Iterator[dict[str, Any]]:
    """Trace the GPU while the body runs: the share of the time in which a kernel ran, and the largest kernels."""
    found: dict[str, Any] = {}
    if "torch" in sys.modules:
        import torch

        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            yield found
        spans = [
            (event.time_range.start * 1e-6, event.time_range.end * 1e-6, event.name)
            for event in profiler.events()
            if event.device_type == torch.autograd.DeviceType.CUDA
        ]
    else:
        import tensorflow as tf
        from tensorflow.tsl.profiler.protobuf import xplane_pb2

        with tempfile.TemporaryDirectory() as folder:
            tf.profiler.experimental.start(folder)
            yield found
            tf.profiler.experimental.stop()
            space = xplane_pb2.XSpace()
            for path in Path(folder).rglob("*.xplane.pb"):
                space.ParseFromString(path.read_bytes())
                if copy := os.environ.get("TRACE"):
                    Path(copy).write_bytes(gzip.compress(path.read_bytes()))
        found["planes"] = [plane.name for plane in space.planes]
        spans = [
            (begin * 1e-12, (begin + event.duration_ps) * 1e-12, plane.event_metadata[event.metadata_id].name)
            for plane in space.planes
            if plane.name.startswith("/device:GPU")
            for line in plane.lines
            if line.name.startswith("Stream")
            for event in line.events
            for begin in [line.timestamp_ns * 1000 + event.offset_ps]
        ]
    found |= summary(spans)


def summary(spans: Sequence[tuple[float, float, str]]) -> dict[str, Any]:
    """Sum up what a GPU did: the time from the first to the last span, that in which there was one, and the largest."""
    if not spans:
        return {"busy": None}
    ordered, busy, until = sorted(spans), 0.0, 0.0
    for begin, end, _ in ordered:
        busy += max(0.0, end - max(begin, until))
        until = max(until, end)
    totals, counts = Counter[str](), Counter[str]()
    for begin, end, name in spans:
        totals[name[:120]] += end - begin
        counts[name[:120]] += 1
    largest = [(name, round(seconds * 1e3, 3), counts[name]) for name, seconds in totals.most_common(30)]
    copies = {name: counts[name] for name in counts if "mem" in name.lower()}
    span = until - ordered[0][0]
    facts = {"span_seconds": span, "busy_seconds": busy, "busy": busy / span}
    return {**facts, "events": len(spans), "largest_ms": largest, "copies": copies}


def run_peer(script: str, turns: Turns) -> None:
    """Run a program of benchmarks/peers."""
    sys.path.insert(0, str(Path(script).parent))
    import work

    def train(settings: Any, rank: int, parameters: Any, step: Callable[[int], Any], *_: Any) -> None:
        number = itertools.count()
        for count, what in turns:
            for _ in range(count):
                losses = step(next(number))
            values = [float(loss) for loss in losses]
            assert all(abs(value) < 1e6 for value in values), f"{what}: the losses are {values}"

    work.train = train
    runpy.run_path(script, run_name="__main__")


def run_hvdgan(words: Sequence[str], turns: Turns) -> int:
    """Run hvdgan.train; its loop waits for its turn between two steps."""
    import dataclasses
    import functools

    import tensorflow as tf

    from hvdgan import train
    from hvdgan.networks import cpu_or_gpu
    from hvdgan.training import build
    from hvdgan.training.loop import Loop
    from hvdgan.training.step import StageStep

    if os.environ.get("LAYOUT") == "kept":
        tf.config.optimizer.set_experimental_options({"layout_optimizer": False})
    if kernels := json.loads(os.environ.get("KERNELS", "{}")):
        cpu_or_gpu.GPU = dataclasses.replace(cpu_or_gpu.GPU, **kernels)
    if os.environ.get("KERAS_KERNELS"):
        build.use_fast_kernels = lambda *_: None
    if os.environ.get("JIT"):
        # Only on one rank: XLA does not compile Horovod's operations.
        StageStep.function = lambda self, due: tf.function(  # type: ignore[method-assign]
            functools.partial(self._run, due), autograph=False, jit_compile=True
        )
    do_step, order = Loop.step, iter(turns)
    left = next(order)[0]

    def step(self: Loop, batches: Any, number: int, at: Any) -> None:
        nonlocal left
        if left == 0:
            self.pending.read_all()
            left = next(order, (1 << 60, ""))[0]
        left -= 1
        do_step(self, batches, number, at)

    Loop.step = step  # type: ignore[method-assign]
    last = FIRST + turns.count * (turns.warm_up + turns.steps)
    last += turns.warm_up + turns.profiled if turns.profiled else 0
    # One step more: the last turn ends before it.
    return train.main([*words, "--max-steps", str(last + 1), "--stall-timeout", "0", "--peer-timeout", "0"])


if __name__ == "__main__":
    settings = Turns(**json.loads(os.environ["TURNS"]))
    sys.argv = sys.argv[1:]
    if sys.argv[0] == "train":
        sys.exit(run_hvdgan(sys.argv[1:], settings))
    run_peer(sys.argv[0], settings)
