"""What all peers share, with the standard library alone: settings, binding to a core, timing, report."""

import dataclasses
import itertools
import json
import math
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

POOL = 16  # number of batches of random pixels; this benchmark does not compare how images are read
CHANNELS = 3
LATENT_SIZE = 100
ADAM = {"learning_rate": 2e-4, "beta_1": 0.5}


class StyleGAN2:
    """The defaults of hvdgan's recipe stylegan2, all of which its peers use."""

    LATENT_SIZE = 512
    MAPPING_LAYERS = 8
    MIXING = 0.9
    GROUP = 4
    R1_GAMMA = 1.0
    R1_EVERY = 16
    LEARNING_RATE = 2.5e-3
    BETA_2 = 0.99
    EPSILON = 1e-8
    DECAY = 0.995
    """of the averages of the generator's weights, and of the mean style"""
    LAZY = R1_EVERY / (R1_EVERY + 1)
    """correction of the discriminator's Adam for the additional update"""
    WIDEST = 512


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """Settings of a run; bench.py gives them to a peer as JSON.

    Args:
        out: folder of the report.
        batch_size: images per step and rank.
        precision: float32 or mixed_bfloat16.
        warm_up: number of first steps that are not measured.
        steps: number of measured steps.
        device: cpu or gpu; on a GPU a rank is not bound to a core, and waits only where the time is taken.
        ranks: number of ranks, or of replicas of one process.
        image_size: height and width of an image.
        nf: width of the networks.
        network: dcgan or stylegan2.
    """

    out: str
    batch_size: int
    precision: str
    warm_up: int
    steps: int
    device: str
    ranks: int
    image_size: int
    nf: int
    network: str = "dcgan"

    @property
    def widths(self) -> list[int]:
        """Channels from the layer next to the image to the one at 4x4 pixels; a DCGAN has none at the image's size."""
        if self.network == "stylegan2":
            return [min(self.nf * 2**depth, StyleGAN2.WIDEST) for depth in range(self.image_size.bit_length() - 2)]
        return [self.nf * 2**depth for depth in range(self.image_size.bit_length() - 3)]

    @property
    def parameters(self) -> list[int]:
        """Trainable parameters of generator and discriminator."""
        return self._of_stylegan2() if self.network == "stylegan2" else self._of_dcgan()

    def _of_dcgan(self) -> list[int]:
        """4x4 kernels, biases unless BatchNorm follows."""
        top, first = self.widths[-1], self.widths[0]
        pairs = list(itertools.pairwise(self.widths))
        up = sum(16 * wide * narrow + 2 * narrow for narrow, wide in pairs)
        down = sum(16 * narrow * wide + 2 * wide for narrow, wide in pairs)
        generator = 16 * LATENT_SIZE * top + 2 * top + up + 16 * first * CHANNELS + CHANNELS
        return [generator, 16 * CHANNELS * first + first + down + 16 * top + 1]

    def _of_stylegan2(self) -> list[int]:
        """Mapping, styles, kernels, biases and noise strengths; and blocks with a skip, and two dense layers."""
        top, first, latent = self.widths[-1], self.widths[0], StyleGAN2.LATENT_SIZE
        pairs = list(itertools.pairwise(self.widths))
        convolutions = [(top, top), *((each, narrow) for narrow, wide in pairs for each in (wide, narrow))]
        generator = StyleGAN2.MAPPING_LAYERS * (latent + 1) * latent + 16 * top
        generator += sum((latent + 1) * inputs + 9 * inputs * outputs + outputs + 1 for inputs, outputs in convolutions)
        generator += sum((latent + 1) * width + (width + 1) * CHANNELS for width in self.widths)
        blocks = sum(narrow * wide + 9 * narrow * (narrow + wide) + narrow + wide for narrow, wide in pairs)
        last = 9 * (top + 1) * top + top + 16 * top * top + top + top + 1
        return [generator, (CHANNELS + 1) * first + blocks + last]


def pin(work: Work, local_rank: int) -> None:
    """Bind this process to one core; call this before any library makes threads, which inherit the binding."""
    if work.device == "cpu":
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[local_rank % len(cores)]})


def train(
    work: Work,
    rank: int,
    parameters: list[int],
    step: Callable[[int], Sequence[Any]],
    weights: Callable[[], list[float]],
    gpu_bytes: Callable[[], int],
) -> None:
    """Run the steps and write the report, `rank-<rank>.json`.

    Args:
        work: settings of the run.
        rank: rank of this process.
        parameters: number of parameters of both networks, which is compared with the expected one.
        step: function that does one step, numbered from 0, and returns the losses; reading them waits for its end.
        weights: function that returns sums over the trained weights, which must be equal on all ranks at the end.
        gpu_bytes: function that returns the peak memory on the GPU.
    """
    if parameters != work.parameters:
        sys.exit(f"rank {rank}: the networks have {parameters} parameters; expected {work.parameters}")
    last = work.warm_up + work.steps
    ends = {}
    for number in range(1, last + 1):
        losses = step(number - 1)
        if work.device == "cpu" or number in (1, work.warm_up, last):
            if not all(math.isfinite(float(loss)) for loss in losses):
                sys.exit(f"rank {rank}, step {number}: the losses are {[float(loss) for loss in losses]}")
            ends[number] = time.time()
    peak = gpu_bytes() if work.device == "gpu" else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ends = {"first": ends[1], "begin": ends[work.warm_up], "end": ends[last]}
    report = {"rank": rank, **ends, "peak_mb": peak / 1e6, "weights": weights()}
    Path(work.out, f"rank-{rank}.json").write_text(json.dumps(report) + "\n", encoding="utf-8")
