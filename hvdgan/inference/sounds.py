"""Turns arrays of any length, such as spectrograms, into waves, with the networks of a run on wave files."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf

from hvdgan.data.numpy_files import open_numpy
from hvdgan.errors import UserError
from hvdgan.inference.trained import TrainedNetworks
from hvdgan.recipe.layer_draws import LayerDraws
from hvdgan.recipe.recipe_errors import call, check, described
from hvdgan.recipe.sampling import SampleRandom
from hvdgan.settings.types import Weights

_WANTED = "it must return a wave (1, T, C) in [-1, 1]"


def waves_of(trained: TrainedNetworks, path: Path, weights: Weights, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield a wave (T, C), by its name, of each array of an .npy or .npz, by the recipe's translate()."""
    container, recipe = open_numpy(str(path)), trained.recipe
    for number, name in enumerate(container.names()):
        array = container.get(name).whole()
        if array.dtype.kind not in "fiu" or not np.isfinite(array).all():
            raise UserError(f"--data {path}: {name or 'its array'} {array.shape}: expected finite numbers")
        random = SampleRandom(seed, tf.constant([number], tf.int64)).scoped("draw")
        given = trained.nets(weights), tf.constant(array[None], tf.float32), "", random
        what = f"--data {path}: {name or 'its array'} {array.shape}: translate()"
        with LayerDraws(random).in_use():
            made = call(recipe.translate, *given, what=what, wanted=_WANTED)
        fits = tf.is_tensor(made) and tf.TensorShape((1, None, recipe.data.channels)).is_compatible_with(made.shape)
        check(fits, f"{what} returns {described(made)}; {_WANTED}", recipe.translate)
        yield name or path.stem, made[0].numpy()
