"""The recipe progressive, and what it stands on: stages with a size and a level, and networks that grow.
Modules: networks.progressive, recipes.progressive"""

import sys

import numpy as np
import pytest
import tensorflow as tf

from hvdgan.inference.trained import load_trained
from hvdgan.networks.progressive import ProgressiveLayers
from launching import run, train
from saved import tensors

WORDS = (
    "--recipe progressive --image-size 8 --global-batch-size 24 --nf 4 --latent-size 4 --size-steps 2 --fade-steps 4 "
    "--steps 2 --sample-every 0 --run-dir run"
).split()


def trained(folder, steps, ranks=1):
    """The tensors after some steps: 2 of size_4, 4 of fade_8, 2 of size_8."""
    folder.mkdir(exist_ok=True)
    train(folder, *WORDS, "--max-steps", str(steps), ranks=ranks)
    return tensors(folder / "run", steps)


def run_on(folder, *words):
    done = run([sys.executable, "-m", *words], folder, forked=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_a_run_that_is_resumed_and_used_at_each_size_has_the_bits_of_an_uninterrupted_one(tmp_path):
    export = "hvdgan.export run --only generator --out".split()
    before, after, whole = trained(tmp_path, 1), trained(tmp_path, 2), trained(tmp_path / "whole", 8)
    same = {key for key in after if key.startswith("networks/") and np.array_equal(before[key], after[key])}
    grown = ("grow_1", "shrink_1", "to_image_1", "from_image_1")
    assert same == {key for key in after if key.startswith("networks/") and any(name in key for name in grown)}
    assert "(B, 4, 4, 1)" in run_on(tmp_path, *export, "small")
    assert "state/level" not in trained(tmp_path, 4)
    level = load_trained(tmp_path / "run").state.schedules.read("level")
    assert float(level) == np.float32(1 / 3)  # in the middle of the fade
    assert "(B, 8, 8, 1)" in run_on(tmp_path, *export, "large")
    run_on(tmp_path, *"hvdgan.sample run --samples 4 --out x.png".split())
    found = trained(tmp_path, 8)
    assert found.keys() == whole.keys() and all(found[key].tobytes() == whole[key].tobytes() for key in found)


@pytest.mark.parametrize("shape", [(16, 16, 3), (8, 16, 32, 1)], ids=str)
def test_the_networks_of_a_size_compute_what_the_whole_ones_do_at_its_levels(shape):
    made = ProgressiveLayers(shape, nf=2, latent_size=4)
    last = len(made.sizes) - 1
    generator, discriminator = made.generator(last), made.discriminator(last)
    latents = tf.random.stateless_normal((4, 4), (0, 1))
    for number in range(last + 1):
        first = max(number - 1, 0)
        for level in {float(first), number - 0.3 if number else 0.0, float(number)}:
            at = tf.fill((4, 1), level)
            small = made.generator(number, first)([latents, at])
            assert small.shape[1:-1] == made.sizes[number]
            large = small
            for _ in range(last - number):
                for axis in range(1, len(shape)):
                    large = tf.repeat(large, 2, axis)
            np.testing.assert_allclose(generator([latents, at]), large, atol=1e-5)
            logits = made.discriminator(number, first)([small, at])
            np.testing.assert_allclose(discriminator([large, at]), logits, atol=1e-4)
