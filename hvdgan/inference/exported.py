"""Compares what exports of a checkpoint compute with what hvdgan computes: a program that hvdgan verify starts."""

from hvdgan.cli import start

start.begin(__name__)

import itertools
import tempfile
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from hvdgan.cli.app import leave, main_of
from hvdgan.inference.inputs import data_inputs
from hvdgan.inference.serving import Serving
from hvdgan.inference.trained import TrainedNetworks, load_trained
from hvdgan.recipe import Recipe, recipe_errors
from hvdgan.recipe.outputs import generated
from hvdgan.recipe.sampling import Drawing, as_written

_COUNT = 8
"""number of samples"""
Pair = tuple[np.ndarray, np.ndarray]
"""what hvdgan computes, and what the export does"""


@main_of()
def main(words: list[str]) -> int:
    """Write pairs, for the run words[0] of the recipe words[1], to the .npz words[2]."""
    trained = load_trained(Path(words[0]), words[1])
    with tempfile.TemporaryDirectory() as folder, recipe_errors.of(trained.recipe):
        # A recipe of domains has no sample() to export: its networks are exported one by one.
        found = (of_networks if trained.recipe.domains else of_samples)(trained, folder)
    arrays = {f"{name}/{place}": each[place] for name, each in found.items() for place in (0, 1)}
    np.savez(words[2], **arrays)  # type: ignore[arg-type]  # a name is never allow_pickle
    return 0


def of_samples(trained: TrainedNetworks, folder: str) -> dict[str, Pair]:
    """The arrays of samples, as networks see them."""
    recipe, nets, numbers = trained.recipe, trained.nets("averaged"), tf.range(_COUNT, dtype=tf.int64)
    inputs = list(itertools.islice(data_inputs(trained, None, 0), _COUNT))
    data = {name: tf.constant(np.stack([each[name] for each in inputs])) for name in inputs[0]}
    drawing = Drawing(recipe, nets)
    batch = drawing.batch(numbers, data)
    mine = drawing(numbers, data) if type(recipe).generate is Recipe.generate else generated(recipe, nets, batch)
    serving = Serving(recipe, nets, in_units=False)
    serving.save(Path(folder))
    loaded = tf.saved_model.load(folder)
    known = {**batch.arrays, **vars(batch), "numbers": numbers}
    known |= loaded.draw(numbers=numbers) if hasattr(loaded, "draw") else {}
    served = loaded.serve(**{name: known[name] for name in serving.inputs})
    return {name: (each.numpy(), served[name].numpy()) for name, each in as_written(mine).items()}


def of_networks(trained: TrainedNetworks, folder: str) -> dict[str, Pair]:
    """The outputs of each network for random inputs."""
    random, found, size = np.random.default_rng(0), dict[str, Pair](), trained.recipe.data.shape
    for name, network in trained.state.networks.items():
        # A network for pictures of any size gets those of the data.
        shapes = [[axis or known for axis, known in zip(each.shape[1:], size, strict=False)] for each in network.inputs]
        given = [random.normal(size=(_COUNT, *shape)).astype(np.float32) for shape in shapes]
        network.export(f"{folder}/{name}", verbose=False)
        args = given[0] if len(given) == 1 else given
        loaded = tf.saved_model.load(f"{folder}/{name}")  # it owns the variables
        outputs = network(args), loaded.serve(args)
        for number, pair in enumerate(zip(*map(keras.tree.flatten, outputs), strict=True)):
            found[f"{name}/{number}"] = pair[0].numpy(), pair[1].numpy()
    return found


if __name__ == "__main__":
    if code := main():
        leave(code)
