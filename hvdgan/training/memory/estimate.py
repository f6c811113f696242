"""Estimates the memory that the steps of a stage take, before they run."""

import dataclasses
import math
from collections.abc import Mapping

import keras
import tensorflow as tf

from hvdgan.data import Samples
from hvdgan.distributed.environment import fusion_buffer
from hvdgan.distributed.ranks import Ranks
from hvdgan.networks.devices import device
from hvdgan.training.memory.liveness import Peak, peak_of
from hvdgan.training.steps.forward import specs_of
from hvdgan.training.steps.skipping import changed_by
from hvdgan.training.steps.step import StageStep
from hvdgan.training.variables.state import TrainState


@dataclasses.dataclass(frozen=True)
class Estimate:
    """The bytes that a rank needs in the steps of a stage; TensorFlow itself is not counted, and no batch on the host.

    Attributes:
        state: bytes of all variables: networks, slots and averages.
        peak: most bytes of activations, gradients and other results that live at once; on a GPU also the batches and
            Horovod's buffer.
        gradients: bytes of the gradients of the update that has the most.
        samples: number of samples in this rank's slice of the global batch.
        micro_batches: number of micro-batches in which they are computed.
    """

    state: int
    peak: Peak
    gradients: int
    samples: int
    micro_batches: int

    @property
    def total(self) -> int:
        return self.state + self.peak.total

    def accumulated(self, micro_batches: int, size: int | None = None) -> int:
        """Bytes that a rank would need with another number of micro-batches.

        What depends on the batch is divided, and the sums of gradients over micro-batches are added.

        Args:
            micro_batches: value of --accumulate.
            size: number of samples in a micro-batch then; None: an equal part of this rank's samples.
        """
        sums = self.gradients * ((micro_batches > 1) - (self.micro_batches > 1))
        scaled = self.peak.scaled * self.micro_batches / self.samples * (size or self.samples / micro_batches)
        return self.state + sums + self.peak.fixed + round(scaled)

    def fitting(self, room: int | None, sizes: Mapping[int, int]) -> int | None:
        """The first of the possible values of --accumulate that fits; None if none fits.

        Args:
            room: bytes that there are, those of the variables among them; None: unknown, and the first value is chosen.
            sizes: number of samples in a micro-batch for each possible value.
        """
        return next((n for n, size in sizes.items() if room is None or self.accumulated(n, size) <= room), None)


def estimate(state: TrainState, step: StageStep, source: Samples, ranks: Ranks) -> Estimate:
    """Estimate the memory of a stage from the graphs of its steps, which have been traced.

    Args:
        state: variables of the run.
        step: step of the stage.
        source: data of the run.
        ranks: ranks of the run.
    """
    forward = step.forward
    gradients = max(sum(map(_bytes, forward.variables(update))) for update in step.stage.updates)
    weights = {tuple(each.shape) for network in state.networks.values() for each in network.trainable_variables}

    def is_fixed(tensor: tf.Tensor) -> bool:
        return tensor.shape.rank is not None and tuple(tensor.shape) in weights

    peak = max((peak_of(graph, is_fixed) for graph in step.graphs), key=lambda each: each.total, default=Peak())
    if not device.chosen().branches:  # the old values, from which it is selected
        peak += Peak(fixed=max(sum(map(_bytes, changed_by(state, update))) for update in step.stage.updates))
    peak += Peak(fixed=_beside_steps(source, forward.count, ranks))
    variables = sum(map(_bytes, state.tensors().values()))
    return Estimate(variables, peak, gradients, forward.count, forward.micro_batches)


def _beside_steps(source: Samples, count: int, ranks: Ranks) -> int:
    """Bytes of a GPU that hold batches of `count` samples, and the gradients of several ranks while they are reduced.

    A batch is kept until the verdict of its step is known, to look for the reason of a bad update.
    """
    choice = device.chosen()
    if not choice.own_memory:
        return 0
    batch = sum(math.prod(spec.shape) * spec.dtype.size for spec in specs_of(source, count).values())
    waiting, newest, ahead = choice.steps_behind, 1, choice.steps_behind
    return batch * (waiting + newest + ahead) + (fusion_buffer() if ranks.size > 1 else 0)


def in_words(count: float) -> str:
    """A number of bytes to two digits, such as 1.2 GB."""
    for unit, name in ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{float(f'{count / unit:.2g}'):,.6g} {name}"
    return f"{count:,.0f} bytes"


def _bytes(variable: keras.Variable) -> int:
    return math.prod(variable.shape) * tf.as_dtype(variable.dtype).size
