"""Shared parts of all peers, with the standard library alone: settings, binding to a core, timing, report."""

import argparse
import dataclasses
import itertools
import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

POOL = 16  # number of batches of random pixels; this benchmark does not compare how images are read


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """Settings of a run: the DCGAN, the images per rank, the steps, and the folder of the report."""

    image_size: int
    channels: int
    nf: int
    batch_size: int
    precision: str
    warm_up: int
    steps: int
    out: Path
    device: str = "cpu"
    """cpu, or gpu: each rank has a GPU, is not bound to a core, and reads the losses only where the time is taken"""
    replicas: int = 2
    """number of devices of a program that is one process"""
    latent_size: int = 100
    learning_rate: float = 2e-4
    beta_1: float = 0.5

    @property
    def widths(self) -> list[int]:
        """Channels of each layer, from the one next to the image to the one at 4x4 pixels."""
        return [self.nf * 2**depth for depth in range(self.image_size.bit_length() - 3)]

    @property
    def parameters(self) -> dict[str, int]:
        """Trainable parameters of each network: 4x4 kernels, biases unless BatchNorm follows, scales and offsets."""
        top, first = self.widths[-1], self.widths[0]
        steps = list(itertools.pairwise(self.widths))
        up = sum(16 * wide * narrow + 2 * narrow for narrow, wide in steps)
        down = sum(16 * narrow * wide + 2 * wide for narrow, wide in steps)
        return {
            "generator": 16 * self.latent_size * top + 2 * top + up + 16 * first * self.channels + self.channels,
            "discriminator": 16 * self.channels * first + first + down + 16 * top + 1,
        }

    def waits(self, number: int) -> bool:
        """Whether a program waits for the end of a step, numbered from 0: GPUs compute on while the host does not."""
        return self.device == "cpu" or number + 1 in (self.warm_up, self.warm_up + self.steps)

    def arguments(self) -> list[str]:
        """Return the command line that parse() reads."""
        words = {field.name: str(getattr(self, field.name)) for field in dataclasses.fields(self)}
        return [word for name, value in words.items() for word in (f"--{name.replace('_', '-')}", value)]


def parse() -> Work:
    """Parse the command line of a peer."""
    parser = argparse.ArgumentParser(description="One peer of benchmarks/peers/bench.py, which starts it.")
    for field in dataclasses.fields(Work):
        default = None if field.default is dataclasses.MISSING else field.default
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=field.type, default=default, required=not default)
    return Work(**vars(parser.parse_args()))


def pin(local_rank: int, device: str = "cpu") -> None:
    """Bind this process to one core; call this before any library makes threads, which inherit the binding."""
    if device == "gpu":
        return
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[local_rank % len(cores)]})


def train(
    work: Work,
    rank: int,
    parameters: dict[str, int],
    step: Callable[[int], Sequence[Any]],
    weights: Callable[[], list[float]],
) -> None:
    """Run the steps and write the report, `rank-<rank>.json`.

    Args:
        work: settings of the run.
        rank: rank of this process.
        parameters: number of parameters of each network, which is compared with the expected one.
        step: function that does one step, numbered from 0, and returns the losses; reading them waits for its end.
        weights: function that returns sums over the trained weights, which must be equal on all ranks at the end.
    """
    if parameters != work.parameters:
        sys.exit(f"rank {rank}: the networks have {parameters} parameters; expected {work.parameters}")
    ends, losses = [], [0.0]
    for number in range(work.warm_up + work.steps):
        found = step(number)
        if work.waits(number):
            losses = [float(loss) for loss in found]
        ends.append(time.time())
        if not all(math.isfinite(loss) for loss in losses):
            sys.exit(f"rank {rank}, step {number}: the losses are {losses}")
    report = {"rank": rank, "parameters": parameters, "ends": ends, "losses": losses, "weights": weights()}
    (work.out / f"rank-{rank}.json").write_text(json.dumps(report) + "\n", encoding="utf-8")
