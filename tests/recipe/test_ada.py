"""Adaptive augmentation: what it does to pictures, and how its probability follows the discriminator."""

import numpy as np
import pytest
import tensorflow as tf

from building import data_of, stage_step, tiny_run
from hvdgan.recipe import Random, UserError, ada, losses
from hvdgan.recipe.ada import adaptive, next_state
from tiny import Tiny

COUNT, SIZE = 6, 8


def random(first=0, count=COUNT):
    return Random(0, tf.constant(3, tf.int64), first, count)


def pictures(channels=3, count=COUNT):
    return np.random.default_rng(0).uniform(-1, 1, (count, SIZE, SIZE, channels)).astype(np.float32)


def moved(images, matrix):
    matrices = tf.tile(tf.constant(matrix, tf.float32)[None], (len(images), 1, 1))
    return ada.sampled(tf.constant(images), matrices).numpy()


@pytest.mark.parametrize("channels", [1, 3])
def test_nothing_changes_at_probability_0_and_all_pictures_do_at_1(channels):
    images = pictures(channels)
    np.testing.assert_allclose(adaptive(images, tf.constant(0.0), random(), "real"), images, atol=1e-5)
    changed = adaptive(images, tf.constant(1.0), random(), "real").numpy()
    assert changed.shape == images.shape and np.isfinite(changed).all()
    assert all(np.abs(one - other).max() > 0.05 for one, other in zip(changed, images, strict=True))
    other_key = adaptive(images, tf.constant(1.0), random(), "fake").numpy()
    assert not np.allclose(changed, other_key)


def test_a_sample_is_changed_in_the_same_way_on_any_rank():
    images = pictures()
    whole = adaptive(images, tf.constant(0.7), random(), "real").numpy()
    half = adaptive(images[3:], tf.constant(0.7), random(3, 3), "real").numpy()
    np.testing.assert_allclose(half, whole[3:], atol=1e-5)


def test_places_are_those_of_numpy():
    images = pictures()
    turn, mirror = [[0, -1, 0], [1, 0, 0], [0, 0, 1]], [[-1, 0, 0], [0, 1, 0], [0, 0, 1]]
    np.testing.assert_allclose(moved(images, mirror), images[:, :, ::-1], atol=1e-5)
    turned = moved(images, turn)
    assert np.allclose(turned, np.rot90(images, 1, (1, 2)), atol=1e-5) or np.allclose(
        turned, np.rot90(images, -1, (1, 2)), atol=1e-5
    )
    right = moved(images, [[1, 0, 2], [0, 1, 0], [0, 0, 1]])  # a place shows what lies two to its right
    np.testing.assert_allclose(right[:, :, :-2], images[:, :, 2:], atol=1e-5)
    np.testing.assert_allclose(right[:, :, -2:], images[:, :, -2:-4:-1] * 0 + images[:, :, [-2, -3]], atol=1e-5)
    half = moved(images, [[1, 0, 0.5], [0, 1, 0], [0, 0, 1]])
    np.testing.assert_allclose(half[:, :, :-1], (images[:, :, :-1] + images[:, :, 1:]) / 2, atol=1e-5)


def test_gradients_flow_through_twice():
    images = tf.constant(pictures())
    with tf.GradientTape() as outer:
        outer.watch(images)
        with tf.GradientTape() as tape:
            tape.watch(images)
            result = tf.reduce_sum(adaptive(images, tf.constant(1.0), random(), "real") ** 2)
        first = tape.gradient(result, images)
        second = outer.gradient(tf.reduce_sum(first**2), images) if first is not None else None
    assert first is not None and second is not None and np.abs(second.numpy()).max() > 0


def test_the_probability_moves_every_fourth_step_towards_the_target():
    state = tf.constant([0.0, 0.0])
    seen = []
    for step, sign in enumerate([0.9, 0.9, 0.5, 0.5, 0.1, 0.1, 0.1, 0.1, -1.0, -1.0, -1.0, -1.0]):
        state = next_state(state, tf.constant(sign), tf.constant(step, tf.int64), target=0.6, change=0.01)
        seen.append(round(float(state[0]), 4))
    assert seen == [0, 0, 0, 0.04, 0.04, 0.04, 0.04, 0, 0, 0, 0, 0]


class Augmented(Tiny):
    def judge(self, nets, batch):
        real = nets.discriminator(batch.augment(batch.images, "real"))
        fake = nets.discriminator(batch.augment(nets.generator(batch.latents), "fake"))
        return losses.non_saturating_discriminator(real, fake), {"real_sign": tf.reduce_mean(tf.sign(real))}


def test_a_run_with_it_logs_its_probability():
    run = tiny_run(Augmented, ada=0.0, ada_images=64)  # a change of 1/4 a step
    for step in range(8):
        metrics, finite = stage_step(run)(step, step, data_of(run, step))
        assert all(finite)
    p = float(run.state.kept.shared()["state/ada"].numpy()[0])
    assert p in (0.0, 1.0) and "ada/p" in metrics


@pytest.mark.parametrize(
    ("recipe", "settings", "complaint"),
    [
        (Tiny, {}, "no loss of the recipe calls batch.augment"),
        (
            type(
                "Silent", (Augmented,), {"judge": lambda self, nets, batch: (Augmented.judge(self, nets, batch)[0], {})}
            ),
            {},
            "no loss of the recipe reports the metric real_sign",
        ),
    ],
)
def test_recipes_without_what_it_needs_are_refused(recipe, settings, complaint):
    with pytest.raises(UserError, match=complaint):
        tiny_run(recipe, ada=0.6, **settings)
