"""Defines stages and their updates as data."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

from hvdgan.recipe.mistakes import Place, maker

Loss = Callable[[Any, Any], tuple[Any, ...]]
"""function (nets, batch) -> (loss, metrics) of a Nets and a Batch: the loss is a scalar tensor, a mean over the batch;
metrics are scalar tensors by name, which are logged as `<update>/<name>`. A third value, if there is one, is a dict of
new values of the recipe's state per sample"""


@dataclasses.dataclass(frozen=True)
class LearningRate:
    """A learning rate over the steps of a stage.

    Args:
        peak: rate after the warm-up, above 0.
        decay: constant, linear or cosine; the last two lead from `peak` after the warm-up to `final` at the last step.
        final: rate at the end of a decay, from 0 up.
        warmup_steps: number of first steps in which the rate grows linearly to `peak`, from 0 up.

    Reference: Goyal et al. 2017, section 2.2 (warm-up); Loshchilov and Hutter 2017, equation 5 (cosine).
    """

    peak: float
    decay: Literal["constant", "linear", "cosine"] = "constant"
    final: float = 0.0
    warmup_steps: int = 0


@dataclasses.dataclass(frozen=True)
class Update:
    """One optimizer step on the networks it owns.

    Args:
        name: name of letters, digits, _ . and -, unique in its stage. Metrics are logged as `<name>/<metric>`.
        owns: names of the networks that this update trains: their trainable variables get gradients, and their
            BatchNorm statistics move.
        loss: function (nets, batch) that returns the loss and a dict of metrics; see Loss.
        every: period in steps, from 1 to the stage's steps: the update runs at the last of each `every` steps. A critic
            that is updated n times as often as its generator has every=1, and the generator every=n.
        learning_rate: rate of this update, above 0, or a LearningRate; None: the rate of the network's optimizer.
        betas: Adam's decays (beta_1, beta_2) in this update; None: those of the network's optimizer.
        clip_norm: largest norm of the gradient of all owned variables, averaged over the ranks, above 0; a longer
            gradient is scaled to it. None: no limit.
        only_if: function of the update's metrics, a dict of scalar float32 tensors averaged over all ranks, `loss`
            among them; returns a scalar boolean tensor: whether the optimizers step. The loss is computed and the
            BatchNorm statistics move in any case. None: the optimizers always step.
    """

    name: str
    owns: Sequence[str]
    loss: Loss
    every: int = 1
    learning_rate: float | LearningRate | None = None
    betas: tuple[float, float] | None = None
    clip_norm: float | None = None
    only_if: Callable[[dict[str, Any]], Any] | None = None
    made: Place | None = dataclasses.field(default=None, init=False, repr=False, compare=False)
    """line of the recipe that made it, for error messages"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "made", maker())

    def due(self, stage_step: int) -> bool:
        """Return whether the update runs at this step of its stage, counted from 0."""
        return (stage_step + 1) % self.every == 0


@dataclasses.dataclass(frozen=True)
class Plateau:
    """End a stage early when a metric no longer improves.

    Args:
        metric: name in the log, `<update>/<name>`; its mean over a window and over all ranks is compared.
        window: length of a window (steps), from 1 up.
        patience: number of windows in a row without a better mean after which the stage ends, from 1 up.
        min_delta: smallest improvement over the best mean that counts, from 0 up.
        mode: min if smaller is better, max if larger is better; None: max for a metric of which more is better by its
            name, such as eval/psnr or eval/precision, else min.
    """

    metric: str
    window: int = 100
    patience: int = 10
    min_delta: float = 0.0
    mode: Literal["min", "max"] | None = None


@dataclasses.dataclass(frozen=True)
class Stage:
    """A number of steps, each of which runs the same updates in order.

    Args:
        name: name of letters, digits, _ . and -, unique in the recipe. It appears in the log and in --stages.
        steps: number of steps, from 1 up.
        updates: updates of a step, which run in this order on the same batch.
        reset_optimizers: True to reset the slots and iteration counts of all owned networks when the stage begins;
            else they carry over from the stage before.
        until: plateau that ends the stage before `steps`; None: no plateau.
    """

    name: str
    steps: int
    updates: Sequence[Update]
    reset_optimizers: bool = False
    until: Plateau | None = None
    made: Place | None = dataclasses.field(default=None, init=False, repr=False, compare=False)
    """line of the recipe that made it, for error messages"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "made", maker())

    @property
    def owns(self) -> list[str]:
        """Names of the networks that the updates own, in alphabetical order."""
        return sorted({name for update in self.updates for name in update.owns})

    def due(self, stage_step: int) -> tuple[Update, ...]:
        """Return the updates that run at this step of the stage, counted from 0, in order."""
        return tuple(update for update in self.updates if update.due(stage_step))
