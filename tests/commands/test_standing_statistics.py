"""Standing statistics of BatchNorm: those of generated batches replace the moving ones before samples are drawn.
Modules: inference.standing"""

import numpy as np
import tensorflow as tf

from hvdgan.inference.standing import set_standing_statistics
from hvdgan.inference.trained import load_trained
from hvdgan.recipe.drawing import SampleRandom
from saved import untrained
from tiny import TinyOptions


def by_hand(saved, kind, batches):
    """Mean and variance of the first layer's outputs, averaged over batches of 4 latents."""
    kernel, bias = (saved[f"{kind}/generator/generator/dense/{name}"].astype(float) for name in ("kernel", "bias"))
    means, variances = [], []
    for number in range(batches):
        numbers = -1 - tf.range(4 * number, 4 * number + 4, dtype=tf.int64)
        latents = SampleRandom(5, numbers).scoped("draw").normal("latents", (8,)).numpy().astype(float)
        outputs = latents @ kernel + bias
        means.append(outputs.mean(axis=0))
        variances.append(outputs.var(axis=0))
    return np.mean(means, axis=0), np.mean(variances, axis=0)


def test_the_statistics_are_the_means_over_the_batches_of_the_weights_in_use(tmp_path):
    """Whatever the moving statistics were. All else keeps its bits, those of the discriminator too."""
    untrained(tmp_path, "tiny:Tiny", TinyOptions(norm="batch"))
    trained, kind = load_trained(tmp_path), "ema"
    tensors = trained.state.tensors()
    for name, variable in tensors.items():
        if "moving" in name:
            variable.assign(variable + 50.0)
    before = {name: variable.numpy() for name, variable in tensors.items()}
    assert set_standing_statistics(trained, "averaged", batches=3, batch_size=4, seed=5) == ["generator"]
    after = {name: variable.numpy() for name, variable in tensors.items()}
    names = [f"{kind}/generator/generator/batch_normalization/moving_{name}" for name in ("mean", "variance")]
    assert {name for name in after if before[name].tobytes() != after[name].tobytes()} == set(names)
    for name, expected in zip(names, by_hand(before, kind, 3), strict=True):
        np.testing.assert_allclose(after[name], expected, rtol=2e-5, atol=1e-6)
    momenta = {layer.momentum for layer in trained.state.networks["generator"].layers if hasattr(layer, "momentum")}
    assert momenta == {0.99}
