"""Calls the methods of a recipe and checks what they return; each function raises a Mistake that says what is wrong."""

import dataclasses
import numbers
from collections.abc import Callable, Collection, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvdgan.recipe import Batch, DataSpec, Recipe, State
from hvdgan.recipe.batch import Parts, unpack
from hvdgan.recipe.draws import Random
from hvdgan.recipe.mistakes import Mistake, call, described, similar
from hvdgan.recipe.mistakes import attribute as place_of
from hvdgan.recipe.nets import Nets
from hvdgan.recipe.stage_checks import STAGES
from hvdgan.recipe.stages import Loss, Stage
from hvdgan.recipe.state import StateValues

NETWORKS = 'a dict of built Keras models by name, as in {"generator": keras.Sequential([...])}'
OPTIMIZERS = 'a dict of an optimizer for each network, as in {"generator": keras.optimizers.Adam(1e-4)}'
DRAWS = 'a dict of tensors by name, (B, ...) each, as in {"latents": random.normal("latents", (64,))}'
LOSS = "a scalar, the mean over the batch, and a dict of scalars to report, as in return loss, {}"
STATE = 'a dict of State by name, as in {"pool": State(np.zeros((50, 32, 32, 3)), per_sample=True)}'
SAMPLES = "images (N, H, W, C) in [-1, 1], C 1 or 3"
METRICS = "a dict of metrics by name, (B,) each, one number per image"
_METHODS = {"networks": NETWORKS, "optimizers": OPTIMIZERS, "stages": STAGES, "sample": SAMPLES}
_SHAPES = (None, None, None, 1), (None, None, None, 3)
_SCALING = "leave the scaling out: hvdgan scales losses itself with --precision mixed_float16"
_HALF = ("float16", "bfloat16")
_FLOAT32 = 'give its last layer dtype="float32", as in layers.Reshape(shape, dtype="float32")'
_NOTHING: Any = None
_OWN_NAMES = frozenset(vars(Batch(_NOTHING, None, _NOTHING, {})))  # attributes of every batch


def check_methods(kind: type[Recipe], *names: str) -> None:
    """Refuse a recipe class that lacks required methods."""
    for name in names:
        if getattr(kind, name) is getattr(Recipe, name):
            own = [attribute for attribute in vars(kind) if attribute not in vars(Recipe)]
            raise Mistake(f"it has no {name}(), which must return {_METHODS[name]}{similar(name, own)}")


def make_recipe(kind: type[Recipe], options: Any, data: DataSpec) -> Recipe:
    """Make an instance of a recipe class."""
    check_methods(kind, "networks", "optimizers", "stages")
    recipe = call(kind, options, data, what="__init__()", wanted="it must take (self, options, data)")
    if not (hasattr(recipe, "options") and hasattr(recipe, "data")):
        raise Mistake("__init__() does not call super().__init__(options, data)", kind.__init__)
    return recipe


def networks_of(recipe: Recipe) -> dict[str, keras.Model]:
    """Call networks(), and check that the networks are built and share no variables."""
    networks = call(recipe.networks, what="networks()", wanted="it must take (self)")
    if not isinstance(networks, dict) or not networks:
        raise Mistake(f"networks() returns {described(networks)}; it must return {NETWORKS}", recipe.networks)
    for name, network in networks.items():
        # Losses use the name as an attribute, and checkpoints as part of a path.
        if not isinstance(name, str) or not name or "/" in name:
            raise Mistake(
                f"networks() gives a network the name {name!r}; choose one such as generator", recipe.networks
            )
        if not isinstance(network, keras.layers.Layer):
            raise Mistake(
                f"networks() gives {name} as {described(network)}; it must return {NETWORKS}", recipe.networks
            )
        if not network.built:
            raise Mistake(
                f"network {name} is not built; call it on an example, or give it an Input, in networks()",
                recipe.networks,
            )
        _refuse_half_precision(name, network, recipe.networks)
    owner: dict[int, str] = {}
    for name, network in networks.items():
        for variable in network.variables:
            if owner.setdefault(id(variable), name) != name:
                raise Mistake(
                    f"networks {owner[id(variable)]} and {name} share {variable.path}; "
                    "every variable must be in one network",
                    recipe.networks,
                )
    return networks


def _refuse_half_precision(name: str, network: keras.Model, at: Any) -> None:
    """Refuse weights that are trained in 16 bits, and results of 16 bits, as a Reshape returns in mixed precision."""
    for variable in network.trainable_variables:
        if variable.dtype in _HALF:
            raise Mistake(
                f"network {name} trains {variable.path} in {variable.dtype}, where small changes are lost; give the "
                f'layer dtype="mixed_{variable.dtype}", whose weights are float32',
                at,
            )
    outputs: list[Any] = getattr(network, "outputs", None) or []  # a subclass of keras.Model does not know its own
    # One of several outputs may be features between layers; sample() is looked at by itself.
    if len(outputs) == 1 and outputs[0].dtype in _HALF:
        (layer,) = getattr(network, "output_names", None) or [network.layers[-1].name]
        raise Mistake(f"network {name} ends in {outputs[0].dtype}, with layer {layer}; {_FLOAT32}", at)


def optimizers_of(
    recipe: Recipe, networks: Mapping[str, keras.Model], frozen: Collection[str]
) -> dict[str, keras.optimizers.Optimizer]:
    """Call optimizers(), and check that every network that is trained has an optimizer of its own.

    Those of frozen networks are not used.
    """
    optimizers = call(recipe.optimizers, what="optimizers()", wanted="it must take (self)")
    if not isinstance(optimizers, dict):
        raise Mistake(f"optimizers() returns {described(optimizers)}; it must return {OPTIMIZERS}", recipe.optimizers)
    optimizers = {name: each for name, each in optimizers.items() if name not in frozen}
    unknown = [str(name) for name in optimizers if name not in networks]
    if missing := networks.keys() - optimizers.keys():
        hint = f" in place of {', '.join(unknown)}" if unknown else ""
        raise Mistake(
            f"optimizers() has none for {', '.join(sorted(missing))}{hint}; every network needs its own, "
            "or trainable = False if it is frozen",
            recipe.optimizers,
        )
    if unknown:
        raise Mistake(
            f"optimizers() has one for {', '.join(unknown)}, and networks() returns {', '.join(networks)}; leave it "
            "out",
            recipe.optimizers,
        )
    for name, optimizer in optimizers.items():
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            raise Mistake(
                f"optimizers() gives {described(optimizer)} for {name}; it must return {OPTIMIZERS}", recipe.optimizers
            )
        for is_set, setting, advice in (
            (isinstance(optimizer, keras.optimizers.LossScaleOptimizer), "a LossScaleOptimizer", _SCALING),
            (optimizer.loss_scale_factor is not None, "an optimizer with loss_scale_factor", _SCALING),
            (optimizer.use_ema, "an optimizer with use_ema", f'leave it out and set ema = ("{name}",) in the class'),
            (not hasattr(optimizer, "learning_rate"), "a MultiOptimizer", "give one optimizer, or split the network"),
        ):
            if is_set:
                raise Mistake(f"optimizers() gives {setting} for {name}; {advice}", recipe.optimizers)
    if len({id(optimizer) for optimizer in optimizers.values()}) < len(networks):
        raise Mistake(
            "optimizers() gives one optimizer to two networks; every network needs its own", recipe.optimizers
        )
    return optimizers


def stages_of(recipe: Recipe) -> list[Stage]:
    """Call stages(); hvdgan.recipe.stage_checks checks the result."""
    return call(recipe.stages, what="stages()", wanted="it must take (self)")


def drawn_by(recipe: Recipe, random: Random, where: str = "") -> dict[str, tf.Tensor]:
    """Call draw(), check the result, and turn numbers into tensors.

    Args:
        recipe: recipe whose draw() is called.
        random: source of the draws.
        where: beginning of error messages, such as "stage both: ".
    """
    at = recipe.draw
    drawn = call(at, random, what=f"{where}draw()", wanted="it must take (self, random)")
    if not isinstance(drawn, dict) or not all(isinstance(name, str) for name in drawn):
        raise Mistake(f"{where}draw() returns {described(drawn)}; it must return {DRAWS}", at)
    if taken := _OWN_NAMES & drawn.keys():
        raise Mistake(f"draw() returns {', '.join(sorted(taken))}, which every batch has; name it otherwise", at)
    drawn = {
        name: tf.convert_to_tensor(value) if isinstance(value, numbers.Number) else value
        for name, value in drawn.items()
    }
    for name, value in drawn.items():
        for tensor in tf.nest.flatten(value):
            # A tensor without a batch dimension, or with one of 1, is the same for all samples, such as a weight.
            if not tf.is_tensor(tensor) or not (
                tensor.shape.rank in (None, 0) or tensor.shape[0] in (None, 1, random.count)
            ):
                raise Mistake(
                    f"{where}draw() gives {name} as {described(tensor)}; it must return {DRAWS}, B {random.count} here",
                    at,
                )
    return drawn


@dataclasses.dataclass(frozen=True)
class PreparedBatch:
    """The samples and draws that all updates of a step have in common.

    parts: samples, inputs and constants.
    labels: (B,) int32, or None.
    conditions: (B, k) float32, or None.
    index: (B,) int64, or None.
    random: source of the draws.
    drawn: result of the recipe's draw().
    """

    parts: Parts
    labels: tf.Tensor | None
    conditions: tf.Tensor | None
    index: tf.Tensor | None
    random: Random
    drawn: dict[str, tf.Tensor]

    def batch(self, scope: str) -> Batch:
        """The batch of one update, of sample() or of evaluate().

        Args:
            scope: name that keeps the draws of batch.random apart from those of other batches.
        """
        return Batch(
            self.parts.images,
            self.labels,
            self.random.scoped(scope),
            self.drawn,
            inputs=self.parts.inputs,
            conditions=self.conditions,
            constants=self.parts.constants,
            index=self.index,
        )


def prepare(
    recipe: Recipe, data: Mapping[str, tf.Tensor], random: Random, where: str = "", crops: Random | None = None
) -> PreparedBatch:
    """Divide the data's records into their parts, and draw what the recipe draws.

    Args:
        recipe: recipe whose draw() is called.
        data: `images`, records of the data (B, ...), and what describes them: `labels` (B,) int32, `conditions` (B, k)
            float32 and `numbers` (B,) int64, where the data have them.
        random: source of the draws.
        crops: source of the places of --crop; None: the centre of each sample.
        where: beginning of error messages, such as "stage both: ".
    """
    parts = unpack(data["images"], recipe.data, crops)
    drawn = drawn_by(recipe, random.scoped("draw"), where)
    return PreparedBatch(parts, data.get("labels"), data.get("conditions"), data.get("numbers"), random, drawn)


def state_of(recipe: Recipe) -> dict[str, State]:
    """Call state(), and return it with arrays as initial values."""
    given = call(recipe.state, what="state()", wanted="it must take (self)")
    if not isinstance(given, dict) or not all(
        isinstance(name, str) and name.isidentifier() and isinstance(state, State) for name, state in given.items()
    ):
        raise Mistake(f"state() returns {described(given)}; it must return {STATE}", recipe.state)
    declared = {}
    for name, state in given.items():
        initial = np.asarray(state.initial)
        if initial.dtype.kind not in "fiub":
            raise Mistake(
                f"state() gives {name} the initial value {described(state.initial)}; give numbers", recipe.state
            )
        initial = initial.astype(np.float32 if initial.dtype.kind == "f" else np.int64)
        declared[name] = dataclasses.replace(state, initial=initial)
    return declared


def new_state(
    given: Any, declared: Mapping[str, State], values: StateValues, what: str, at: Any, *, per_sample: bool
) -> dict[str, tf.Tensor]:
    """Check new values of state, as a loss or control() returns them, and return them as tensors."""
    settable = [name for name, state in declared.items() if state.per_sample == per_sample]
    kind = "a dict of new values of the state that is " + ("per sample" if per_sample else "not per sample")
    if not isinstance(given, dict) or set(given) - set(settable):
        raise Mistake(f"{what} returns {described(given)}; it must return {kind} ({', '.join(settable) or 'none'})", at)
    found = {}
    for name, value in given.items():
        old = getattr(values, name)
        try:
            found[name] = tf.cast(tf.convert_to_tensor(value), old.dtype)
        except (TypeError, ValueError):
            raise Mistake(f"{what} gives {name} as {described(value)}; it must be a tensor", at) from None
        if not found[name].shape.is_compatible_with(old.shape):
            raise Mistake(f"{what} gives {name} as {described(value)}; it must have the shape {tuple(old.shape)}", at)
    return found


def controlled(
    recipe: Recipe, declared: Mapping[str, State], values: StateValues, metrics: Mapping[str, tf.Tensor], where: str
) -> dict[str, tf.Tensor]:
    """Call control(), and return the new values."""
    given = call(
        recipe.control, values, metrics, what=f"{where}: control()", wanted="it must take (self, state, metrics)"
    )
    return new_state(given, declared, values, f"{where}: control()", recipe.control, per_sample=False)


def loss_of(loss: Loss, nets: Nets, batch: Batch, where: str) -> tuple[tf.Tensor, dict[str, tf.Tensor], Any]:
    """Call a loss, and return it and its metrics as float32 scalars, and the new state that it returns, unchecked.

    Args:
        loss: loss of an update.
        nets: networks as the update sees them.
        batch: batch of the update.
        where: stage and update, for error messages.
    """
    given = call(loss, nets, batch, what=f"{where}: the loss", wanted="it must take (self, nets, batch)")
    if not isinstance(given, tuple | list) or len(given) not in (2, 3) or tf.is_tensor(given):
        raise Mistake(f"{where}: the loss returns {described(given)}; it must return {LOSS}", loss)
    value, metrics, moved = (*given, {})[:3]
    if not isinstance(metrics, dict) or not all(isinstance(name, str) for name in metrics):
        raise Mistake(f"{where}: the loss returns {described(metrics)} as its metrics; it must return {LOSS}", loss)
    if "loss" in metrics:
        raise Mistake(f"{where}: a metric is named loss, as the loss itself is; rename it", loss)
    scalar = _float32(value)
    if scalar is None or scalar.shape.rank != 0:
        shape = None if scalar is None or scalar.shape.rank is None else f"has shape {tuple(scalar.shape)}"
        raise Mistake(
            f"{where}: the loss {shape or f'is {described(value)}'}; it must be a scalar, the mean over the batch", loss
        )
    scalars = {name: _float32(metric) for name, metric in metrics.items()}
    for name, metric in scalars.items():
        if metric is None or metric.shape.rank not in (0, None):
            raise Mistake(
                f"{where}: the metric {name} is {described(metrics[name])}; it must be a scalar, as of tf.reduce_mean",
                loss,
            )
    return scalar, scalars, moved


def decision_of(only_if: Callable[[dict[str, Any]], Any], metrics: Mapping[str, tf.Tensor], where: str) -> tf.Tensor:
    """Call an update's only_if on its metrics, and return what it decides as a scalar bool."""
    wanted = f"it gets the metrics {', '.join(metrics)}, and must return one bool"
    given = call(only_if, metrics, what=f"{where}: only_if of the metrics {', '.join(metrics)}", wanted=wanted)
    if not isinstance(given, bool) and not (tf.is_tensor(given) and given.dtype == tf.bool and given.shape.rank == 0):
        raise Mistake(f"{where}: only_if returns {described(given)}; {wanted}", only_if)
    return tf.convert_to_tensor(given)


def sampled(recipe: Recipe, nets: Nets, batch: Batch) -> tf.Tensor:
    """Call sample(), and check that it returns pictures, or samples of the data's shape."""
    given = call(recipe.sample, nets, batch, what="sample()", wanted="it must take (self, nets, batch)")
    shape = recipe.data.shape
    wanted = SAMPLES if recipe.data.is_pictures else f"samples (N, {', '.join(map(str, shape))}), of the data's shape"
    shapes = _SHAPES if recipe.data.is_pictures else ((None, *shape),)
    what = f"sample() returns {described(given)}; it must return {wanted}"
    try:
        samples = tf.convert_to_tensor(given)
    except (TypeError, ValueError) as error:
        raise Mistake(what, recipe.sample) from error
    if samples.dtype.name in _HALF:
        raise Mistake(
            f"sample() returns {described(given)} of a network in {samples.dtype.name}; {_FLOAT32}", recipe.sample
        )
    if not (samples.dtype.is_floating and any(samples.shape.is_compatible_with(shape) for shape in shapes)):
        raise Mistake(what, recipe.sample)
    _refuse_blank_data(recipe, batch, samples, "sample()", recipe.sample)
    return samples


def _refuse_blank_data(recipe: Recipe, batch: Batch, samples: tf.Tensor, what: str, at: Any) -> None:
    """Refuse samples that are computed of the data, if the recipe does not say so: it gets blank ones."""
    if recipe.shows_data or tf.executing_eagerly():
        return
    for part in ("images", "inputs"):
        if getattr(batch, part) is not None and reads(samples, getattr(batch, part)):
            raise Mistake(
                f"{what} reads batch.{part}, which is blank for samples; set shows_data = True in the class", at
            )


def reads(result: tf.Tensor, tensor: tf.Tensor) -> bool:
    """Whether a result is computed of another tensor of the graph that is being traced."""
    waiting, seen = [result], set()
    while waiting:
        each = waiting.pop()
        if each.name == tensor.name:
            return True
        if each.op.name not in seen:
            seen.add(each.op.name)
            waiting += each.op.inputs
    return False


def generated(recipe: Recipe, nets: Nets, batch: Batch) -> tf.Tensor:
    """Call generate(), and check that it returns samples of the data's shape."""
    shape = recipe.data.shape
    most = batch.images.shape[0]
    wanted = f"samples (N, {', '.join(map(str, shape))}), of the data's shape, at most {most} for a batch of {most}"
    given = call(recipe.generate, nets, batch, what="generate()", wanted="it must take (self, nets, batch)")
    own = type(recipe).generate is not Recipe.generate
    what, at = ("generate()", recipe.generate) if own else ("sample()", recipe.sample)
    hint = "" if own else "; write generate(self, nets, batch), which does"
    samples = _float32(given)
    if (
        samples is None
        or not samples.shape.is_compatible_with((None, *shape))
        or not 0 < (samples.shape[0] or 0) <= most
    ):
        raise Mistake(f"--eval-samples: {what} returns {described(given)}, and not {wanted}{hint}", at)
    _refuse_blank_data(recipe, batch, samples, what, at)
    return samples


def features_of(recipe: Recipe, nets: Nets, batch: Batch) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Call features(), and return features (B, d) and class probabilities (B, C) or None, float32."""
    wanted = "it must return features (B, d), or a pair of features and class probabilities (B, C)"
    if type(recipe).features is Recipe.features:
        raise Mistake(f"--eval-features recipe: it has no features(self, nets, batch); {wanted}")
    # Samples of another program, or other data, may lack what the data of the run have.
    parts = {
        "labels": (recipe.data.num_classes, batch.labels),
        "conditions": (recipe.data.conditions, batch.conditions),
    }
    missing = " and ".join(name for name, (of_data, given) in parts.items() if of_data and given is None)
    what = f"features(), without {missing} for these samples," if missing else "features()"
    given = call(recipe.features, nets, batch, what=what, wanted="it must take (self, nets, batch)")
    both = given if isinstance(given, tuple) else (given,)
    found = [_float32(each) for each in both]
    if not 1 <= len(found) <= 2 or any(
        each is None or not each.shape.is_compatible_with((batch.images.shape[0], None)) for each in found
    ):
        raise Mistake(f"features() returns {described(given)}; {wanted}", recipe.features)
    return found[0], found[1] if len(found) == 2 else None


def measured(recipe: Recipe, nets: Nets, batch: Batch, count: int) -> dict[str, tf.Tensor]:
    """Call evaluate(), and return its metrics by name, (count,) float32 each."""
    wanted = f"it must return {METRICS}"
    metrics = call(recipe.evaluate, nets, batch, what="evaluate()", wanted="it must take (self, nets, batch)")
    if not isinstance(metrics, dict) or not all(isinstance(name, str) for name in metrics):
        raise Mistake(f"evaluate() returns {described(metrics)}; {wanted}", recipe.evaluate)
    values = {name: _float32(metric) for name, metric in metrics.items()}
    for name, value in values.items():
        if value is None or not value.shape.is_compatible_with((count,)):
            raise Mistake(f"evaluate() returns {name} as {described(metrics[name])}; {wanted}", recipe.evaluate)
    return values


def _float32(value: Any) -> tf.Tensor | None:
    """The value as a float32 tensor; None if it does not consist of numbers."""
    try:
        tensor = tf.convert_to_tensor(value)
    except (TypeError, ValueError):
        return None
    return None if tensor.dtype in (tf.string, tf.variant, tf.resource) else tf.cast(tensor, tf.float32)


def check_names(recipe: Recipe, networks: Mapping[str, keras.Model]) -> None:
    """Refuse unknown names in the recipe's ema and may_change."""
    options = [field.name for field in dataclasses.fields(recipe.options)]
    for attribute, known, where in (("ema", list(networks), "networks()"), ("may_change", options, "Options")):
        names, at = getattr(recipe, attribute), place_of(type(recipe), attribute)
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            example = f'("{names}",)' if isinstance(names, str) else f'("{known[0]}",)' if known else "()"
            raise Mistake(f"{attribute} is {names!r}; it must be a tuple of names, as in {example}", at)
        if unknown := sorted(set(names) - set(known)):
            said = f"{where} returns" if attribute == "ema" else f"{where} has"
            raise Mistake(f"{attribute} names {', '.join(unknown)}, and {said} {', '.join(known)}", at)
