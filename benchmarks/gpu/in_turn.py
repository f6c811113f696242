"""Compares programs that live at the same time and take turns: python -m gpu.in_turn --out FOLDER [more]

Each program of benchmarks/peers/bench.py is started once, and then measured in several rounds. hvdgan also runs in
variants, in the first precision: another kernel, or another setting of TensorFlow. All start at the same time, and do
their first steps one after another, in the order of --programs. The last round takes a trace of what the GPU does.
FOLDER gets turns.json with everything, a log of each program, and the trace of each variant of hvdgan.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "peers"))
import bench
from work import Work

VARIANTS: dict[str, dict[str, str]] = {
    "hvdgan": {},
    "hvdgan: Keras' kernels": {"KERAS_KERNELS": "1"},
    "hvdgan: products": {"KERNELS": '{"products": true}'},
    "hvdgan: wide slopes": {"KERNELS": '{"wide_slopes": true}'},
    "hvdgan: blurs in kernels": {"KERNELS": '{"blurs_apart": false}'},
    "hvdgan: branches": {"KERNELS": '{"branches": true}'},
    "hvdgan: numbers of the host": {"KERNELS": '{"own_memory": false}'},
    "hvdgan: 1 step behind": {"KERNELS": '{"steps_behind": 1}'},
    "hvdgan: 16 steps behind": {"KERNELS": '{"steps_behind": 16}'},
    "hvdgan: XLA": {"JIT": "1", "KERNELS": '{"own_memory": false}'},
    "hvdgan: persistent BatchNorm": {"TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT": "1"},
    "hvdgan: layouts kept": {"LAYOUT": "kept"},
    "hvdgan: XLA's clusters": {"TF_XLA_FLAGS": "--tf_xla_auto_jit=2"},
    "hvdgan: own threads for the GPU": {"TF_GPU_THREAD_MODE": "gpu_private"},
    "hvdgan: CUDA's allocator": {"TF_GPU_ALLOCATOR": "cuda_malloc_async"},
}
"""environment variables of each variant"""


class Program:
    """A program that takes turns.

    Args:
        name: name of a program of bench.py, or of a variant.
        work: settings of its run.
        given: the command line.
    """

    def __init__(self, name: str, work: Work, given: argparse.Namespace) -> None:
        self.name, self.work = name, work
        self.label = f"{name}, {work.precision}"
        self.file = re.sub(r"\W+", "-", self.label)
        self.folder, self.problem, self.turns = given.out, "", list[dict[str, Any]]()
        out = given.out / self.file
        out.mkdir()
        kind = "hvdgan" if name in VARIANTS else name
        ((words, more),) = bench.commands(kind, Work(**{**vars(work), "out": str(out)}))
        child = str(Path(__file__).with_name("taking_turns.py"))
        if kind == "hvdgan":
            words = [words[0], child, "train", *_replaced(words[3:], {"--steps": "1000000", "--log-every": "100"})]
            words += [] if name == "hvdgan" else ["--allow", "batch-dependent-loss"]  # one look at the losses is enough
        else:
            words = [words[0], child, *words[1:]]
        turns = {"folder": str(given.out), "name": self.file, "count": given.rounds, "warm_up": work.warm_up}
        turns |= {"steps": work.steps, "profiled": 0 if kind.startswith("torch") else given.profiled}
        env = {**os.environ, **more, **VARIANTS.get(name, {}), "TURNS": json.dumps(turns)}
        env |= {"TRACE": str(given.out / f"{self.file}.xplane.pb.gz")} if kind == "hvdgan" else {}
        env |= {"TF_FORCE_GPU_ALLOW_GROWTH": "true"} if "allocator" not in name else {}
        with (given.out / f"{self.file}.txt").open("w") as log:
            how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
            self.process = subprocess.Popen(words, cwd=out, env=env, start_new_session=True, **how)

    def take(self, turn: int, until: float) -> None:
        """Let it work as soon as it is ready, and wait until it has worked, or time.monotonic() is `until`."""
        if not self.problem and self._is_there("ready", turn, until):
            (self.folder / f"{self.file}.go.{turn}").touch()
            if self._is_there("done", turn, until):
                found = (self.folder / f"{self.file}.done.{turn}").read_text(encoding="utf-8")
                self.turns += [json.loads(found)] if turn else []

    def _is_there(self, what: str, turn: int, until: float) -> bool:
        path = self.folder / f"{self.file}.{what}.{turn}"
        while not path.exists() and self.process.poll() is None and time.monotonic() < until:
            time.sleep(0.001)
        if not path.exists():
            self.end(f"turn {turn} is not {what}; exit code {self.process.poll()}")
        return path.exists()

    def end(self, problem: str = "") -> None:
        """End it."""
        self.problem = self.problem or problem
        if self.process.poll() is None:
            os.killpg(self.process.pid, 9)

    @property
    def rates(self) -> list[float]:
        """Images per second of each turn."""
        return [self.work.batch_size * each["steps"] / each["seconds"] for each in self.turns if "seconds" in each]

    def facts(self) -> dict[str, Any]:
        """Everything that was found."""
        kept = {name: getattr(self.work, name) for name in ("precision", "batch_size", "network")}
        facts = {"program": self.name, **kept, "images_per_sec": self.rates}
        return {**facts, "turns": self.turns, "problem": self.problem}


def _replaced(words: Sequence[str], values: dict[str, str]) -> list[str]:
    """Replace the values of some flags."""
    return [values.get(before, word) for before, word in zip(["", *words], words, strict=False)]


def main() -> int:
    """Start the programs, let them take turns, print and write what was found."""
    given = arguments()
    begin = time.monotonic()
    bench.clean_environment()
    given.out.mkdir(parents=True)
    sizes = {
        name: getattr(given, name)
        for name in ("batch_size", "warm_up", "steps", "device", "image_size", "nf", "network")
    }
    programs = []
    for precision in given.precision:
        for name in given.programs:
            if name in VARIANTS and name != "hvdgan" and precision != given.precision[0]:
                continue
            programs.append(Program(name, Work(out="", precision=precision, ranks=1, **sizes), given))
    try:
        for each in programs:
            each.take(0, begin + given.start_seconds)
            print(f"{time.monotonic() - begin:.0f} s: {each.label}: {each.problem or 'ready'}", flush=True)
        for turn in range(1, given.rounds + 2):
            shift = turn % len(programs)
            for each in [*programs[shift:], *programs[:shift]]:
                if time.monotonic() < begin + given.seconds:
                    each.take(turn, begin + given.seconds)
            write(given, programs)
    finally:
        for each in programs:
            each.end()
    write(given, programs)
    print(table(programs))
    return int(any(each.problem for each in programs))


def write(given: argparse.Namespace, programs: Sequence[Program]) -> None:
    """Write turns.json."""
    facts = {"machine": bench.machine(), "arguments": {k: str(v) for k, v in vars(given).items()}}
    text = json.dumps({**facts, "programs": [each.facts() for each in programs]}, indent=1)
    (given.out / "turns.json").write_text(text, encoding="utf-8")


def table(programs: Sequence[Program]) -> str:
    """A row for each program: median and range of images/s, its ratio to hvdgan within rounds, memory, busy share."""
    lines = ["| precision | program | images/s | hvdgan is faster by | GPU memory, MiB | busy |", "|" + "---|" * 6]
    for each in programs:
        rates = each.rates
        ours = next(p.rates for p in programs if p.name == "hvdgan" and p.work.precision == each.work.precision)
        if not rates:
            lines.append(f"| {each.work.precision} | {each.name} | {each.problem} | | | |")
            continue
        ratios = [a / b for a, b in zip(ours, rates, strict=False)] or [float("nan")]
        busy = [f"{turn['busy']:.3f}" for turn in each.turns if turn.get("busy")]
        peak = max(turn.get("peak_bytes", 0) for turn in each.turns) / 2**20
        lines.append(
            f"| {each.work.precision} | {each.name} | {statistics.median(rates):,.0f} ({min(rates):,.0f} to "
            f"{max(rates):,.0f}) | {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}) | "
            f"{peak:,.0f} | {' '.join(busy)} |"
        )
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser("python -m gpu.in_turn", description=__doc__)
    known = [*bench.ONE["gpu"], *VARIANTS]
    parser.add_argument("--out", type=Path, required=True, help="new folder")
    parser.add_argument("--programs", type=bench.words, default=bench.ONE["gpu"], help=f"some of {', '.join(known)}")
    parser.add_argument("--network", choices=["dcgan", "stylegan2"], default="dcgan")
    parser.add_argument("--precision", type=bench.words, default=["mixed_bfloat16", "float32"])
    parser.add_argument("--device", choices=["cpu", "gpu"], default="gpu")
    numbers = {"rounds": 4, "batch-size": 128, "image-size": 64, "nf": 64, "warm-up": 48, "steps": 400, "profiled": 16}
    for name, default in (numbers | {"start-seconds": 150, "seconds": 280}).items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default: {default}")
    given = parser.parse_args()
    given.out = given.out.absolute()
    return given


if __name__ == "__main__":
    sys.exit(main())
