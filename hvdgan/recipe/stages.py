"""Defines stages and their updates as data."""

import dataclasses
import math
import numbers
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from hvdgan.recipe.recipe_errors import check, check_unique, described
from hvdgan.recipe.schedule import Schedule, fits_throughout

Loss = Callable[[Any, Any], tuple[Any, ...]]
"""function (nets, batch) -> (loss, metrics) of a Nets and a Batch: the loss is a scalar tensor, a mean over the batch;
metrics are scalar tensors by name, which are logged as `<update>/<name>`. A third value, if there is one, is a dict of
new values of the recipe's state per sample"""


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
        learning_rate: rate of this update, above 0, or a Schedule; None: the rate of the network's optimizer.
        betas: Adam's decays (beta_1, beta_2) in this update, numbers or Schedules, from 0 to below 1; None: those of
            the network's optimizer.
        clip_norm: largest norm of the gradient of all owned variables, averaged over the ranks, above 0; a longer
            gradient is scaled to it. None: no limit.
        clip_value: largest size of each number of that gradient, above 0, instead of clip_norm; None: no limit.
        clip_weights: largest size of each number in the trainable variables, above 0: after the optimizers' step they
            are clipped to it, as in Arjovsky et al. 2017, algorithm 1. None: no limit.
        only_if: function of the update's metrics, a dict of scalar float32 tensors averaged over all ranks, `loss`
            among them; returns a scalar boolean tensor: whether the optimizers step. The loss is computed and the
            BatchNorm statistics move in any case. None: the optimizers always step.
        reduce: False to train the owned networks on each rank's own samples alone. Their weights, slots and statistics
            then differ between the ranks, as those of the discriminators of SAGIPS do (arXiv:2407.00051).
        optimizer: name among the optimizers of each owned network for which optimizers() returns a dict; None if it
            returns one optimizer for each.
    """

    name: str
    owns: Sequence[str]
    loss: Loss
    every: int = 1
    learning_rate: float | Schedule | None = None
    betas: tuple[float | Schedule, float | Schedule] | None = None
    clip_norm: float | None = None
    clip_value: float | None = None
    clip_weights: float | None = None
    only_if: Callable[[dict[str, Any]], Any] | None = None
    reduce: bool = True
    optimizer: str | None = None

    def __post_init__(self) -> None:
        where, rate = f"update {self.name}", self.learning_rate
        betas = (None, None) if self.betas is None else self.betas
        _check_name(where, self.name)
        owns = isinstance(self.owns, tuple | list) and self.owns and all(isinstance(name, str) for name in self.owns)
        check(owns, f'{where}: owns is {described(self.owns)}; it must be a list of names, as in ["generator"]')
        check_unique(f"{where}: owned network", self.owns)
        for argument, fits, wanted in (
            ("loss", callable(self.loss), "a function of the networks and the batch, as in loss=self.judge"),
            ("every", _is_count(self.every), "a whole number of steps, at least 1"),
            ("learning_rate", fits_throughout(rate, lambda end: end >= 0) and rate != 0, "above 0, or a Schedule"),
            (
                "betas",
                len(betas) == 2 and all(fits_throughout(each, lambda end: 0 <= end < 1) for each in betas),
                "two numbers or Schedules from 0 to below 1, as in (0.5, 0.999)",
            ),
            ("clip_norm", _is_positive(self.clip_norm, None), "a number above 0"),
            ("clip_value", _is_positive(self.clip_value, None), "a number above 0"),
            ("clip_weights", _is_positive(self.clip_weights, None), "a number above 0"),
        ):
            check(fits, f"{where}: {argument} is {described(getattr(self, argument))}; it must be {wanted}")
        check(None in (self.clip_norm, self.clip_value), f"{where}: has clip_norm and clip_value; leave one out")

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

    def __post_init__(self) -> None:
        fits = min(self.window, self.patience) >= 1 and self.min_delta >= 0 and self.mode in ("min", "max", None)
        check(fits, f"{self}; window and patience must be at least 1, min_delta 0 or more, mode min, max or None")


@dataclasses.dataclass(frozen=True)
class Stage:
    """A number of steps, each of which runs the same updates in order.

    By default an update sees the networks as the updates before it have left them: the generator's gradient goes
    through the discriminator that the same step has just updated.

    Args:
        name: name of letters, digits, _ . and -, unique in the recipe. It appears in the log and in --stages.
        steps: number of steps, from 1 up.
        updates: updates of a step, which run in this order on the same batch.
        reset_optimizers: True to reset the slots and iteration counts of all owned networks when the stage begins;
            else they carry over from the stage before.
        until: plateau that ends the stage before `steps`; None: no plateau.
        size: number of pixels along each axis of space, or a tuple of these, of batch.images in this stage: means over
            the pixels of the data. The recipe's grown() makes the networks of this size. None: the size of the data.
        schedules: values that change in this stage, by name: `batch.schedule("level")` reads one. A stage that does not
            name it keeps its last value. `ema_half_life` (images) replaces --ema-half-life. `augment` is the
            probability of each transform of --ada, which batch.augment then applies without that flag.
        together: True for a simultaneous step, as in TensorFlow's tutorials: every update sees the weights and the
            state from before the step, and the optimizers step in order after the last gradient is computed.
    """

    name: str
    steps: int
    updates: Sequence[Update]
    reset_optimizers: bool = False
    until: Plateau | None = None
    size: int | tuple[int, ...] | None = None
    schedules: Mapping[str, Schedule] = dataclasses.field(default_factory=dict)
    together: bool = False

    def __post_init__(self) -> None:
        where, updates = f"stage {self.name}", self.updates
        _check_name(where, self.name)
        check(_is_count(self.steps), f"{where}: {described(self.steps)} steps; expected a whole number, at least 1")
        fits = isinstance(updates, tuple | list) and updates and all(isinstance(update, Update) for update in updates)
        check(fits, f"{where}: updates is {described(updates)}; it must be a list of Update")
        check_unique(f"{where}: update", [update.name for update in updates])
        sizes = [self.size] if isinstance(self.size, int) else self.size or ()
        check(
            all(map(_is_count, sizes)), f"{where}: size is {self.size!r}; it must be in pixels, as in 16 or (5, 16, 16)"
        )
        for name, each in self.schedules.items():
            _check_name(f"{where}, schedule {name!r}", name)
            check(isinstance(each, Schedule), f"{where}: {name} is {described(each)}; it must be a Schedule")
        half_life, augment = (self.schedules.get(name) for name in ("ema_half_life", "augment"))
        check(fits_throughout(half_life, lambda end: end > 0), f"{where}: {half_life}; ema_half_life must be above 0")
        check(fits_throughout(augment, lambda end: 0 <= end <= 1), f"{where}: {augment}; augment is from 0 to 1")
        for update in updates:
            what = f"{where}, update {update.name}: every is {update.every}; it must be from 1 to the stage's "
            check(update.every <= self.steps, f"{what}{self.steps} steps")

    @property
    def owns(self) -> list[str]:
        """Names of the networks that the updates own, in alphabetical order."""
        return sorted({name for update in self.updates for name in update.owns})

    def due(self, stage_step: int) -> tuple[Update, ...]:
        """Return the updates that run at this step of the stage, counted from 0, in order."""
        return tuple(update for update in self.updates if update.due(stage_step))


def local_networks(stages: Sequence[Stage]) -> list[str]:
    """Names of the networks that each rank trains for itself, in alphabetical order."""
    updates = [update for stage in stages for update in stage.updates]
    return sorted({name for update in updates if not update.reduce for name in update.owns})


def _check_name(where: str, name: str) -> None:
    # The ranks' tensors and the metrics are named after it.
    fits = isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name)
    check(fits, f"{where}: a name is made of letters, digits, and _ . - after the first; choose another")


def _is_count(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and int(value) >= 1


def _is_positive(value: Any, unset: Any = ...) -> bool:
    return value is unset or (isinstance(value, numbers.Real) and 0 < float(value) < math.inf)
