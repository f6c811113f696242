"""Calls the methods of a recipe that define a run, and checks what they return; a Mistake says what is wrong.

hvdgan/recipe/outputs.py does so for the methods that compute samples, features and metrics.
"""

import dataclasses
import numbers
from collections.abc import Callable, Collection, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvdgan.recipe.batch import Batch, Domain, State, StateValues, unpack
from hvdgan.recipe.data_spec import DataSpec
from hvdgan.recipe.draws import Random
from hvdgan.recipe.layer_draws import LayerDraws
from hvdgan.recipe.nets import Nets
from hvdgan.recipe.recipe import Recipe
from hvdgan.recipe.recipe_errors import Mistake, call, check, described
from hvdgan.recipe.sharing import Sharing
from hvdgan.recipe.stages import Loss, Stage

NETWORKS = 'a dict of built Keras models by name, as in {"generator": keras.Sequential([...])}'
OPTIMIZERS = 'a dict of an optimizer for each network, as in {"generator": keras.optimizers.Adam(1e-4)}'
DRAWS = 'a dict of tensors by name, (B, ...) each, as in {"latents": random.normal("latents", (64,))}'
LOSS = "a scalar, the mean over the batch, and a dict of scalars to report, as in return loss, {}"
STATE = 'a dict of State by name, as in {"pool": State(np.zeros((50, 32, 32, 3)), per_sample=True)}'
SAMPLES = "images (N, H, W, C) in [-1, 1], C 1 or 3"
_METHODS = {"networks": NETWORKS, "optimizers": OPTIMIZERS, "stages": "a list of Stage", "sample": SAMPLES}
_SCALING = "leave the scaling out: hvdgan scales losses itself with --precision mixed_float16"
HALF = ("float16", "bfloat16")
FLOAT32 = 'give its last layer dtype="float32", as in layers.Reshape(shape, dtype="float32")'
IN_NETS = "it must take (self, nets, batch)"
_ATTRIBUTES = [name for name in vars(Recipe) if not name.startswith("_") and not callable(getattr(Recipe, name))]


def check_methods(kind: type[Recipe], *names: str) -> None:
    """Refuse a recipe class that lacks required methods, has one by the name of an attribute, or wrong domains."""
    for name in _ATTRIBUTES:
        what = f"{name}() has the name of a class attribute of recipes ({name} = {getattr(Recipe, name)!r}); rename it"
        check(not callable(getattr(kind, name)), what, getattr(kind, name))
    domains, example = kind.domains, 'it must be a tuple of two names or more, as in ("A", "B")'
    fits = not isinstance(domains, str) and len({*domains}) == len(domains) != 1
    check(fits, f"domains is {domains!r}; {example}")
    check(not (kind.domains and kind.paired), "it has domains, whose samples have no partners, and paired = True")
    for name in names:
        is_there = getattr(kind, name) is not getattr(Recipe, name)
        check(is_there, f"it has no {name}(), which must return {_METHODS[name]}")


def make_recipe(kind: type[Recipe], options: Any, data: DataSpec) -> Recipe:
    """Make an instance of a recipe class."""
    check_methods(kind, "networks", "optimizers", "stages")
    recipe = call(kind, options, data, what="__init__()", wanted="it must take (self, options, data)")
    is_made = hasattr(recipe, "options") and hasattr(recipe, "data")
    check(is_made, "__init__() does not call super().__init__(options, data)", kind.__init__)
    return recipe


def named(method: Callable[..., Any], *arguments: Any, what: str, kind: Any, must: str, takes: str) -> dict[str, Any]:
    """Call a method that returns a dict of something by name."""
    found = call(method, *arguments, what=what, wanted=f"it must take {takes}")
    is_dict = isinstance(found, dict) and all(isinstance(name, str) for name in found)
    check(is_dict, f"{what} returns {described(found)}; it must return {must}", method)
    for name, each in found.items():
        check(isinstance(each, kind), f"{what} gives {name} as {described(each)}; it must return {must}", method)
    return found


def networks_of(recipe: Recipe) -> dict[str, keras.Model]:
    """Call networks(), and check that the networks are built."""
    at = recipe.networks
    networks = named(at, what="networks()", kind=keras.layers.Layer, must=NETWORKS, takes="(self)")
    for name, network in networks.items():
        check(
            "/" not in name, f"network {name}: / divides the names of tensors in a checkpoint; choose another name", at
        )
        advice = "call it on an example, or give it an Input, in networks()"
        check(network.built, f"network {name} is not built; {advice}", at)
        _refuse_half_precision(name, network, at)
    return networks


def grown_of(recipe: Recipe, networks: Mapping[str, keras.Model], stage: Stage) -> dict[str, keras.Model]:
    """Call grown() for a stage that names a size, and check that its networks are parts of the recipe's own."""
    if stage.size is None:
        return {}
    at, space = recipe.grown, recipe.data.shape[:-1]
    sizes = (stage.size,) * len(space) if isinstance(stage.size, int) else tuple(stage.size)
    fits = len(sizes) == len(space) and all(whole % size == 0 for whole, size in zip(space, sizes, strict=True))
    check(fits, f"stage {stage.name}: size {stage.size} does not divide that of the data, {space}", recipe.stages)
    what = f"grown({stage.size!r})"
    found = named(at, stage.size, what=what, kind=keras.Model, must=NETWORKS, takes="(self, size)")
    for name, network in found.items():
        check(name in networks, f"{what} has {name}, and networks() returns {', '.join(networks)}", at)
        own = {id(variable) for variable in networks[name].variables}
        foreign = [variable.path for variable in network.variables if id(variable) not in own]
        check(not foreign, f"{what}: {name} has {', '.join(foreign[:3])}, which networks() does not give {name}", at)
    return found


def _refuse_half_precision(name: str, network: keras.Model, at: Any) -> None:
    """Refuse weights that are trained in 16 bits or 8, and results of 16 bits, as of a Reshape in mixed precision."""
    for variable in network.trainable_variables:
        check(
            variable.dtype not in HALF,
            f"network {name} trains {variable.path} in {variable.dtype}, where small changes are lost; give the "
            f'layer dtype="mixed_{variable.dtype}", whose weights are float32',
            at,
        )
        is_float8 = getattr(variable, "overwrite_with_gradient", False)
        what = f"network {name} has {variable.path}, whose gradient is its next value, as in float8 training"
        check(not is_float8, f'{what}, which ranks and loss scales would change; leave quantize("float8") out', at)
    outputs: list[Any] = getattr(network, "outputs", None) or []  # a subclass of keras.Model does not know its own
    # One of several outputs may be features between layers; sample() is looked at by itself.
    if len(outputs) == 1 and outputs[0].dtype in HALF:
        (layer,) = getattr(network, "output_names", None) or [network.layers[-1].name]
        raise Mistake(f"network {name} ends in {outputs[0].dtype}, with layer {layer}; {FLOAT32}", at)


def optimizers_of(
    recipe: Recipe, networks: Mapping[str, keras.Model], frozen: Collection[str]
) -> dict[str, keras.optimizers.Optimizer]:
    """Call optimizers(), and return those of networks that are not frozen, by <network> or <network>/<name>.

    A network whose variables are all in others that have optimizers may go without, as one with nothing to train may.
    """
    at = recipe.optimizers
    found = named(at, what="optimizers()", kind=keras.optimizers.Optimizer | dict, must=OPTIMIZERS, takes="(self)")
    given = {name: each for name, each in found.items() if name not in frozen}
    untrained = {name for name, network in networks.items() if not network.trainable_variables}
    check(
        given.keys() <= networks.keys() <= Sharing(networks).covered(given) | untrained,
        f"optimizers() has some for {', '.join(given) or 'no network'}, and networks() returns "
        f"{', '.join(networks)}; every network needs its own, or trainable = False if it is frozen",
        at,
    )
    optimizers: dict[str, keras.optimizers.Optimizer] = {}
    for name, each in ((name, given[name]) for name in networks if name in given):
        for choice, optimizer in each.items() if isinstance(each, dict) else [("", each)]:
            what = f"optimizers() gives {choice!r} of {name} as {described(optimizer)}"
            fits = isinstance(choice, str) and "/" not in choice and isinstance(optimizer, keras.optimizers.Optimizer)
            check(fits, f"{what}; it must return {OPTIMIZERS}", at)
            optimizers[f"{name}/{choice}" if isinstance(each, dict) else name] = optimizer
    for name, optimizer in optimizers.items():
        modules = {kind.__module__.partition(".")[0] for kind in type(optimizer).__mro__}
        for is_set, setting, advice in (
            ("horovod" in modules, "a DistributedOptimizer", "leave it out: hvdgan reduces gradients itself"),
            (isinstance(optimizer, keras.optimizers.LossScaleOptimizer), "a LossScaleOptimizer", _SCALING),
            (optimizer.loss_scale_factor is not None, "an optimizer with loss_scale_factor", _SCALING),
            (optimizer.use_ema, "an optimizer with use_ema", f'leave it out and set ema = ("{name}",) in the class'),
            (not hasattr(optimizer, "learning_rate"), "a MultiOptimizer", "give one optimizer, or split the network"),
        ):
            check(not is_set, f"optimizers() gives {setting} for {name}; {advice}", at)
    unique = len({id(optimizer) for optimizer in optimizers.values()}) == len(optimizers)
    check(unique, "optimizers() gives one optimizer twice; every network needs its own", at)
    return optimizers


def stages_of(recipe: Recipe) -> list[Stage]:
    """Call stages(); hvdgan.recipe.stage_plan checks the result."""
    return call(recipe.stages, what="stages()", wanted="it must take (self)")


def drawn_by(recipe: Recipe, random: Random, where: str = "") -> dict[str, tf.Tensor]:
    """Call draw(), check the result, and turn numbers into tensors; `where` begins the messages."""
    at = recipe.draw
    drawn = named(at, random, what=f"{where}draw()", kind=object, must=DRAWS, takes="(self, random)")
    # A tensor without a batch dimension, or with one of 1, is the same for all samples, such as a weight.
    counts = (None, 1, random.count)
    for name, value in drawn.items():
        drawn[name] = value = tf.convert_to_tensor(value) if isinstance(value, numbers.Number) else value
        for tensor in tf.nest.flatten(value):
            fits = tf.is_tensor(tensor) and (tensor.shape.rank in (None, 0) or tensor.shape[0] in counts)
            what = f"{where}draw() gives {name} as {described(tensor)}"
            check(fits, f"{what}; it must return {DRAWS}, B {random.count} here", at)
    return drawn


def prepare(
    recipe: Recipe, data: Mapping[str, tf.Tensor], random: Random, where: str = "", crops: Random | None = None
) -> Batch:
    """The batch that all updates of a step have in common: samples in their parts, and what the recipe draws.

    `data` has the parts of samples (B, ...), as unpack() takes them, and where the data have them `labels` (B,) int32,
    `conditions` (B, k) float32 and `numbers` (B,) int64; for a further domain the same after its name, as in B/images.
    `where` begins the messages. `crops` draws the places of --crop; None: their centre.
    """
    images, inputs, constants, arrays = unpack(data, recipe.data, crops)
    first = Domain(images, data.get("labels"), data.get("conditions"))
    domains: dict[str, Domain] = {}
    for name, spec in recipe.data.domains.items():
        if not domains:
            domains[name] = first
        elif f"{name}/images" in data:
            others = unpack({"images": data[f"{name}/images"]}, spec, crops and crops.scoped(name)).images
            labels, conditions = data.get(f"{name}/labels"), data.get(f"{name}/conditions")
            domains[name] = Domain(others, None if labels is None else tf.cast(labels, tf.int32), conditions)
    drawn = drawn_by(recipe, random.scoped("draw"), where)
    more = {"inputs": inputs, "conditions": first.conditions, "constants": constants, "index": data.get("numbers")}
    return Batch(images, first.labels, random, drawn, domains=domains, arrays=arrays, **more)


def state_of(recipe: Recipe) -> dict[str, State]:
    """Call state(), and return it with arrays as initial values."""
    given = named(recipe.state, what="state()", kind=State, must=STATE, takes="(self)")
    declared = {}
    for name, state in given.items():
        initial = np.asarray(state.initial)
        is_right = name.isidentifier() and initial.dtype.kind in "fiub"
        check(is_right, f"state() gives {name} as {described(state.initial)}; it must return {STATE}", recipe.state)
        kind = np.float32 if initial.dtype.kind == "f" else np.int64
        declared[name] = dataclasses.replace(state, initial=initial.astype(kind))
    return declared


def new_state(given: Any, values: StateValues, what: str, at: Any) -> dict[str, tf.Tensor]:
    """Check new values of state, as a loss or control() returns them, and return them as tensors."""
    settable = vars(values)
    wanted = f"a dict of new values of {', '.join(settable) or 'no state'}, in their shapes"
    fits = isinstance(given, dict) and not given.keys() - settable.keys()
    check(fits, f"{what} returns {described(given)} as state; it must be {wanted}", at)
    found = {}
    for name, value in given.items():
        old, tensor = settable[name], tensor_of(value)
        fits = tensor is not None and tensor.shape.is_compatible_with(old.shape)
        check(fits, f"{what} gives {name} as {described(value)}; it must have the shape {tuple(old.shape)}", at)
        found[name] = tf.cast(tensor, old.dtype)
    return found


def controlled(
    recipe: Recipe, values: StateValues, metrics: Mapping[str, tf.Tensor], where: str
) -> dict[str, tf.Tensor]:
    """Call control(), and return the new values."""
    what = f"{where}: control()"
    given = call(recipe.control, values, metrics, what=what, wanted="it must take (self, state, metrics)")
    return new_state(given, values, what, recipe.control)


def loss_of(
    loss: Loss, nets: Nets, batch: Batch, where: str, draws: LayerDraws
) -> tuple[tf.Tensor, dict[str, tf.Tensor], Any]:
    """Call the loss of an update, and return it and its metrics as float32 scalars, and new state, unchecked.

    `where` begins the messages; layers draw numbers of `draws`.
    """
    with draws.in_use(f"{where}: ", loss):
        given = call(loss, nets, batch, what=f"{where}: the loss", wanted=IN_NETS)
    is_pair = isinstance(given, tuple | list) and len(given) in (2, 3) and isinstance(given[1], dict)
    check(is_pair, f"{where}: the loss returns {described(given)}; it must return {LOSS}", loss)
    check("loss" not in given[1], f"{where}: a metric is named loss, as the loss itself is; rename it", loss)
    scalars = {}
    for name, value in {"the loss": given[0], **given[1]}.items():
        scalars[name] = scalar = float32_of(value)
        fits = scalar is not None and scalar.shape.rank in (0, None)
        check(fits, f"{where}: {name} is {described(value)}; it must be a scalar, the mean over the batch", loss)
    return scalars.pop("the loss"), scalars, given[2] if len(given) == 3 else {}


def decision_of(only_if: Callable[[dict[str, Any]], Any], metrics: Mapping[str, tf.Tensor], where: str) -> tf.Tensor:
    """Call an update's only_if on its metrics, and return what it decides as a scalar bool."""
    wanted = f"it gets the metrics {', '.join(metrics)}, and must return one bool"
    given = call(only_if, metrics, what=f"{where}: only_if of the metrics {', '.join(metrics)}", wanted=wanted)
    is_bool = isinstance(given, bool) or (tf.is_tensor(given) and given.dtype == tf.bool and given.shape.rank == 0)
    check(is_bool, f"{where}: only_if returns {described(given)}; {wanted}", only_if)
    return tf.convert_to_tensor(given)


def reads(result: tf.Tensor, tensor: tf.Tensor, but_through: tuple[str, ...] = ()) -> bool:
    """Whether a result is computed of another tensor of its graph, not only through some types or names of operations.

    `but_through` are the beginnings of these.
    """
    waiting, seen = [result], set()
    while waiting:
        each = waiting.pop()
        if each.name == tensor.name:
            return True
        ends = any(word.startswith(but_through) for word in (each.op.type, each.op.name.rpartition("/")[2]))
        if each.name not in seen and not ends:
            seen.add(each.name)
            # A tf.custom_gradient passes its results on beside its arguments.
            is_one_of = each.op.type == "IdentityN"
            waiting += [each.op.inputs[each.value_index]] if is_one_of else each.op.inputs
    return False


def tensor_of(value: Any) -> tf.Tensor | None:
    try:
        return tf.convert_to_tensor(value)
    except (TypeError, ValueError):
        return None


def float32_of(value: Any) -> tf.Tensor | None:
    """The value as a float32 tensor; None if it does not consist of numbers."""
    tensor = tensor_of(value)
    is_number = tensor is not None and tensor.dtype not in (tf.string, tf.variant, tf.resource)
    return tf.cast(tensor, tf.float32) if is_number else None


def check_names(recipe: Recipe, networks: Mapping[str, keras.Model]) -> None:
    """Refuse unknown names in the recipe's ema and may_change."""
    options = [field.name for field in dataclasses.fields(recipe.options)]
    for attribute, known, where in (("ema", [*networks], "networks() returns"), ("may_change", options, "Options has")):
        names = getattr(recipe, attribute)
        example = f'it must be a tuple of names, as in ("{names}",)'
        check(not isinstance(names, str), f"{attribute} is {names!r}; {example}")
        unknown = sorted(set(names) - set(known))
        check(not unknown, f"{attribute} names {', '.join(unknown)}, and {where} {', '.join(known)}")
