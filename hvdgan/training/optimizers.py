"""How gradients change networks: norm, clipping, rates, decays, and how an update that is not finite is undone."""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence

import keras
import tensorflow as tf

from hvdgan.networks import cpu_or_gpu
from hvdgan.networks.kernels import FusedAdam
from hvdgan.recipe.recipe_errors import check
from hvdgan.recipe.schedule import Schedule
from hvdgan.recipe.sharing import parts
from hvdgan.recipe.stages import Stage, Update
from hvdgan.settings.config import Config
from hvdgan.training.train_state import TrainState

Before = Sequence[tuple[keras.Variable, tf.Tensor]]
"""variables with their earlier values"""


def global_norm(gradients: Sequence[tf.Tensor]) -> tf.Tensor:
    """The Euclidean norm of all gradients together, float32; not finite if any of their numbers is not."""
    return tf.sqrt(2.0 * tf.add_n([tf.cast(tf.nn.l2_loss(gradient), tf.float32) for gradient in gradients]))


def apply_gradients(
    state: TrainState,
    update: Update,
    gradients: Sequence[tf.Tensor],
    norm: tf.Tensor,
    at: Callable[[Schedule], tf.Tensor],
    config: Config,
    applies: tf.Tensor | None = None,
) -> None:
    """Clip the gradients, let the optimizer of each owned network make one step, and clip the weights.

    `at` gives the value of a schedule. If `applies` is false, only the variables of undone_by() change.
    """
    betas = update.betas and tuple(at(each) if isinstance(each, Schedule) else each for each in update.betas)
    if update.clip_norm is not None:
        scale = update.clip_norm / tf.maximum(norm, update.clip_norm)
        gradients = [gradient * tf.cast(scale, gradient.dtype) for gradient in gradients]
    if update.clip_value is not None:
        gradients = [tf.clip_by_value(gradient, -update.clip_value, update.clip_value) for gradient in gradients]
    begin = 0
    for name, variables in _stepping(state, update).items():
        optimizer = state.optimizers[name]
        rate = state.learning_rates.get(name) if update.learning_rate is None else update.learning_rate
        if rate is not None:
            value = at(rate) if isinstance(rate, Schedule) else tf.constant(rate, tf.float32)
            optimizer.learning_rate.assign(rate_factor(config) * value)
        with _betas(optimizer, betas), _made_if(optimizer, applies):
            optimizer.apply(gradients[begin : begin + len(variables)], variables)
        begin += len(variables)
        if update.clip_weights is not None:
            for variable in variables:
                variable.assign(tf.clip_by_value(variable.value, -update.clip_weights, update.clip_weights))


@contextlib.contextmanager
def _betas(optimizer: keras.optimizers.Optimizer, betas: Sequence[float | tf.Tensor] | None) -> Iterator[None]:
    """Trace an optimizer with an update's own decays, which Keras reads while it is traced."""
    if betas is None:
        yield
        return
    own = optimizer.beta_1, optimizer.beta_2
    optimizer.beta_1, optimizer.beta_2 = betas
    try:
        yield
    finally:
        optimizer.beta_1, optimizer.beta_2 = own


@contextlib.contextmanager
def _made_if(optimizer: keras.optimizers.Optimizer, applies: tf.Tensor | None) -> Iterator[None]:
    """Trace a step of an optimizer that it skips if `applies` is false, if it is one that can."""
    if applies is None or not isinstance(optimizer, FusedAdam):
        yield
        return
    optimizer.applies = applies
    try:
        yield
    finally:
        optimizer.applies = None


def values_of(variables: Sequence[keras.Variable]) -> Before:
    """The variables with the values that they have now."""
    return [(variable, variable.value.read_value()) for variable in variables]


def changed_by(state: TrainState, update: Update) -> list[keras.Variable]:
    """The variables that apply_gradients() changes: the weights of the update's networks, and their slots."""
    return [v for name, some in _stepping(state, update).items() for v in (*some, *state.optimizers[name].variables)]


def undone_by(state: TrainState, update: Update) -> list[keras.Variable]:
    """The variables that apply_gradients() changes although `applies` is false, so that their values must be kept."""
    found = []
    for name, some in _stepping(state, update).items():
        optimizer = state.optimizers[name]
        changed, left = [*some, *optimizer.variables], set[int]()
        if isinstance(optimizer, FusedAdam) and optimizer.leaves_alone(some) and update.clip_weights is None:
            left = {id(variable) for variable in (*some, *optimizer.moments())}
        found += [variable for variable in changed if id(variable) not in left]
    return found


def _stepping(state: TrainState, update: Update) -> dict[str, list[keras.Variable]]:
    """The optimizers that make the update's step, by name, and the variables that each changes."""
    found = {}
    for network, variables in parts(state.networks, update.owns).items():
        for name in (network, f"{network}/{update.optimizer}"):
            if name in state.optimizers:  # a network whose layers are all in others may have none
                found[name] = variables
    return found


def apply_if(
    finite: tf.Tensor,
    wanted: tf.Tensor,
    apply: Callable[[tf.Tensor | None], None],
    before: Before,
    undone: Sequence[keras.Variable],
) -> tf.Tensor:
    """Apply gradients if they are finite and wanted; if they are not finite, undo what the forward pass moved.

    Returns a scalar bool: whether they were applied. A GPU would stop at a branch until the host knows which way to go.
    So there apply() gets the answer, and `undone`, what it changes in any case, gets its earlier values back.
    For an optimizer that cannot leave out a step, these are the weights and its slots.
    """
    applies = finite & wanted
    if cpu_or_gpu.chosen().branches:
        tf.cond(applies, lambda: apply(None), lambda: tf.cond(finite, lambda: None, lambda: _assign(before)))
    else:
        kept = values_of(undone)
        apply(applies)
        _assign([(variable, tf.where(applies, variable.value, value)) for variable, value in kept])
        _assign([(variable, tf.where(finite, variable.value, value)) for variable, value in before])
    return applies


def _assign(values: Before) -> None:
    for variable, value in values:
        variable.assign(value)


def rate_factor(config: Config) -> float:
    """The factor that --lr-scaling gives to all learning rates.

    Reference: Goyal et al. 2017, section 2.1 (linear); Krizhevsky 2014, section 5 (root).
    """
    ratio = config.global_batch_size / config.lr_base_batch_size
    return {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[config.lr_scaling]


def check_optimizers(stages: Sequence[Stage], state: TrainState) -> None:
    """Refuse updates without trainable variables, or with a learning rate or betas that an optimizer cannot have."""
    for where, update in ((f"stage {stage.name}, update {u.name}: it", u) for stage in stages for u in stage.updates):
        trains = any(state.networks[name].trainable_variables for name in update.owns)
        what = f"{where} owns only {', '.join(update.owns)}, without trainable variables"
        check(trains, f"{what}; let it own a network that it trains, too", update)
        _check_choice(where, update, state)
        for name in _stepping(state, update):
            fits = update.learning_rate is None or name in state.learning_rates
            what = f"{where} has a learning rate, and the optimizer of {name} has a schedule of its own"
            check(fits, f"{what}; leave one out", update)
            fits = update.betas is None or all(hasattr(state.optimizers[name], each) for each in ("beta_1", "beta_2"))
            what = f"{where} has betas, and the optimizer of {name} has none"
            check(fits, f"{what}; leave them out, or use Adam", update)


def _check_choice(where: str, update: Update, state: TrainState) -> None:
    """Refuse an update that does not say with which optimizer it trains a network, or names one that is not there."""
    chooses = False
    for network, variables in parts(state.networks, update.owns).items():
        names = state.optimizers_of(network)
        what = f"{where} owns {network}, for which optimizers() returns none"
        check(names or not variables, f"{what}; let it return one", update)
        if names and names != [network]:
            chooses, what = True, f"{where} has optimizer={update.optimizer!r}, and owns {network}"
            choices = ", ".join(name.partition("/")[2] for name in names)
            check(f"{network}/{update.optimizer}" in names, f"{what}, whose optimizers are {choices}; name one", update)
    what = f"{where} has optimizer={update.optimizer!r}, and owns no network with several optimizers"
    check(chooses or update.optimizer is None, f"{what}; leave it out", update)
