"""Trains each case of keras_cases with hvdgan (one rank, all ranks, a resume), and in a plain loop of Keras."""

import functools
import gc
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from building import data_of, stage_step, tiny_run, values_of
from hvdgan.checkpoints import files
from hvdgan.distributed.ranks import Ranks
from hvdgan.errors import RankFailed, RunError, in_one_line
from hvdgan.networks.layers import is_seed
from hvdgan.recipe import Recipe, Stage, Update, losses
from hvdgan.recipe.draws import Random
from hvdgan.training.digests import check_ranks
from hvdgan.training.saving import ResumePoint, snapshot
from keras_cases import Case

STEPS, HALF = 12, 6
WORKS = "works"
Key = tuple[str, str]
"""group and name of a case"""


class Trial(Recipe):
    """A GAN whose two networks have the layer of a case."""

    case: Case

    def networks(self):
        return {name: self.network(outputs) for name, outputs in (("generator", 64), ("critic", 10))}

    def network(self, outputs):
        inputs = keras.Input((64,))
        x = layers.Dense(int(np.prod(self.case.shape)), "tanh")(inputs)
        if len(self.case.shape) > 1:
            x = layers.Reshape(self.case.shape)(x)
        parts = [layers.Flatten()(each) for each in tf.nest.flatten(self.case.inner(x))]
        x = layers.Concatenate()(parts) if len(parts) > 1 else parts[0]
        return keras.Model(inputs, layers.Dense(outputs, **self.case.dense())(x))

    def optimizers(self):
        return {name: self.case.optimizer() for name in ("generator", "critic")}

    def stages(self):
        judge, fool = Update("judge", ["critic"], self.judge), Update("fool", ["generator"], self.fool)
        return [Stage("both", STEPS, [judge, fool])]

    def draw(self, random):
        return {"latents": random.normal("latents", (64,))}

    def judge(self, nets, batch):
        real = nets.critic(tf.reshape(batch.images, (-1, 64)))
        if self.case.loss:
            return self.case.loss(batch.labels, real), {}
        return losses.non_saturating_discriminator(real, nets.critic(nets.generator(batch.latents))), {}

    def fool(self, nets, batch):
        scores = nets.critic(nets.generator(batch.latents))
        loss = self.case.loss
        return loss(batch.labels, scores) if loss else losses.non_saturating_generator(scores), {}

    def sample(self, nets, batch):
        return tf.zeros((1, 8, 8, 1))


def outcomes(cases: Mapping[Key, Case], ranks: Ranks) -> dict[Key, str]:
    """What becomes of each case: WORKS, a refusal, or what differs; every rank calls this, and compares some."""
    gc.freeze()  # Keras collects garbage whenever a run is built
    recipes = [type("Trial", (Trial,), {"case": case}) for case in cases.values()]
    together = [_attempted(_trained, recipe, ranks) for recipe in recipes]
    numbers = range(ranks.rank, len(cases), ranks.size)
    mine = [[number, _compared(recipes[number], together[number])] for number in numbers]
    found = dict(pair for pairs in ranks.gather(mine, "outcomes") for pair in pairs)
    return {key: found[number] for number, key in enumerate(cases)}


def _attempted(work: Callable[..., Any], *arguments: Any) -> Any:
    """The result of work, or the text of the error that ends it."""
    try:
        return work(*arguments)
    except RankFailed as error:
        return f"fails: {error}"
    except RunError as error:
        return f"refused: {error}"
    except Exception as error:  # a traceback for a user, and a row for the table
        return f"fails: {type(error).__name__}: {in_one_line(error)[:300]}"


def _trained(recipe: type[Trial], ranks: Ranks) -> dict[str, np.ndarray]:
    """The variables of a run after all steps."""
    run = tiny_run(recipe, ranks=ranks)
    _train(run, 0, STEPS)
    with run.rank_state.averaged(run.rank_state.gather()):
        return values_of(run)


def _train(run: Any, first: int, last: int) -> None:
    for number in range(first, last):
        _, finite = stage_step(run)(number, number, data_of(run, number))
        assert all(finite), "a loss or gradients are not finite"
        if number == first:
            check_ranks(run.ranks, run.state, number)


def _compared(recipe: type[Trial], together: dict[str, np.ndarray] | str) -> str:
    """The outcome of a case, given what all ranks have trained; no collective."""
    if isinstance(together, str):
        return together
    run = tiny_run(recipe)
    first = values_of(run)
    # Layers that draw have other numbers in plain Keras.
    draws = any(is_seed(each) for network in run.state.networks.values() for each in network.variables)
    what = "micro-batches" if draws else "plain Keras"
    alone = _attempted(_halves, recipe, run)
    other = _attempted(_in_micro_batches, recipe) if draws else _attempted(_plainly, run, first)
    if isinstance(alone, str) or isinstance(other, str):
        return alone if isinstance(alone, str) else f"{what} {other}"
    whole, resumed = alone
    same = all(whole[name].tobytes() == resumed[name].tobytes() for name in whole)
    differences = ["" if same else "other bits after a resume", _far(whole, other, what)]
    return "; ".join(filter(None, [*differences, _far(whole, together, "two ranks")])) or WORKS


def _halves(recipe: type[Trial], run: Any) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The variables of a run on one rank, and those of the same run after a resume from its middle."""
    _train(run, 0, HALF)
    progress = {"ended": {}, "bad_files": {}, "bad_updates": {}, "ranks": []}
    saved = snapshot(run, ResumePoint(run_id="trial"), HALF, run.rank_state.gather(), progress)
    with tempfile.TemporaryDirectory() as folder:
        path = files.write(Path(folder), saved)
        _train(run, HALF, STEPS)
        resumed = tiny_run(recipe)
        files.assign(resumed.state.tensors(), files.read(path).of_root(), path)
    _train(resumed, HALF, STEPS)
    return values_of(run), values_of(resumed)


def _in_micro_batches(recipe: type[Trial]) -> dict[str, np.ndarray]:
    """The variables of a run on one rank that computes a step in two halves."""
    run = tiny_run(recipe, accumulate=2)
    _train(run, 0, STEPS)
    return values_of(run)


def _plainly(run: Any, first: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The networks' variables after the same steps, from these first values, in a loop as Keras documents it."""
    # The layers of the run may have other classes.
    recipe: Trial = type(run.recipe)(run.recipe.options, run.recipe.data)
    keras.utils.clear_session()
    networks, optimizers = recipe.networks(), recipe.optimizers()
    for name, network in networks.items():
        for variable, own in zip(network.variables, run.state.networks[name].variables, strict=True):
            variable.assign(first[f"networks/{name}/{own.path}"])
        optimizers[name].build(network.trainable_variables)  # some keep a copy of the weights

    def update(owned: str, loss_of: Callable, images: tf.Tensor, labels: tf.Tensor, latents: tf.Tensor) -> None:
        of_calls: list[tf.Tensor] = []
        nets = SimpleNamespace(**{name: _caller(each, name == owned, of_calls) for name, each in networks.items()})
        variables = networks[owned].trainable_variables
        with tf.GradientTape() as tape:
            loss, _ = loss_of(nets, SimpleNamespace(images=images, labels=labels, latents=latents))
            of_weights = [variable.regularizer(variable) for variable in variables if variable.regularizer is not None]
            loss = tf.add_n([tf.cast(each, tf.float32) for each in (loss, *of_calls, *of_weights)])
        optimizers[owned].apply(tape.gradient(loss, [variable.value for variable in variables]), variables)

    pairs = (("critic", recipe.judge), ("generator", recipe.fool))
    updates = [tf.function(functools.partial(update, *pair), autograph=False) for pair in pairs]
    for number in range(STEPS):
        data = data_of(run, number)
        images, labels = tf.cast(data["images"], tf.float32) / 127.5 - 1.0, tf.cast(data["labels"], tf.int32)
        random = Random(run.config.seed, tf.constant(number, tf.int64), 0, len(images))
        for each in updates:
            each(images, labels, recipe.draw(random.scoped("draw"))["latents"])
    return {
        f"networks/{name}/{place}": variable.numpy()
        for name, network in networks.items()
        for place, variable in enumerate(network.variables)
    }


def _caller(network: keras.Model, is_owned: bool, of_calls: list[tf.Tensor]) -> Callable[[Any], Any]:
    """A network in training mode, whose losses of a call are noted; one that is not owned keeps its state."""

    def call(x: Any) -> Any:
        if not is_owned:
            weights, others = network.trainable_variables, network.non_trainable_variables
            return network.stateless_call(weights, others, x, training=True)[0]
        output = network(x, training=True)
        of_weights = sum(variable.regularizer is not None for variable in network.trainable_variables)
        of_calls.extend(network.losses[: len(network.losses) - of_weights])
        return output

    return call


def _far(whole: dict[str, np.ndarray], other: dict[str, np.ndarray], what: str) -> str:
    """Whether the networks' numbers differ by more than the order of sums explains."""
    mine, others = ([v for name, v in each.items() if name.startswith("networks/")] for each in (whole, other))
    pairs = [(a, b) for a, b in zip(mine, others, strict=True) if "seed" not in str(a.dtype)]
    near = all(np.allclose(a.astype(float), b.astype(float), rtol=1e-3, atol=1e-4) for a, b in pairs)
    return "" if near else f"differs from {what}"
