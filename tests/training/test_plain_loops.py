"""A run computes what a plain loop of TensorFlow computes: a simultaneous step, clipped gradients, clipped weights."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from building import changed, data_of, stage_step, tiny_run, trained, values_of
from hvdgan.recipe.stages import Update
from plain_loop import AtOnce, assert_equal, plain_loop
from tiny import TinyOptions

pytestmark = pytest.mark.core


@pytest.mark.parametrize(
    ("norm", "accumulate", "judges"),
    [
        pytest.param("batch", 1, {}, marks=pytest.mark.long),
        pytest.param("batch", 2, {}, marks=pytest.mark.long),
        ("none", 1, {}),
        pytest.param("batch", 1, {"clip_value": 1e-3}, marks=pytest.mark.long),
        ("batch", 2, {"clip_weights": 0.05}),
    ],
)
def test_both_gradients_are_those_before_the_step(monkeypatch, norm, accumulate, judges):
    """With spectral normalisation, which changes a weight in each call, instead of BatchNorm where `norm` is none."""
    monkeypatch.setattr(AtOnce, "judges", judges)
    run = tiny_run(AtOnce, TinyOptions(norm=norm, steps=20), accumulate=accumulate, ema_decay=0.5)
    expected = plain_loop(run, micro_batches=accumulate)
    assert_equal(trained(run), expected, 1e-6 if norm == "batch" else 2e-5)  # power iteration amplifies rounding


def test_weights_are_not_clipped_if_the_update_is_not_applied(monkeypatch):
    monkeypatch.setattr(AtOnce, "judges", {"clip_weights": 0.01, "only_if": lambda metrics: metrics["loss"] < 0})
    run = tiny_run(AtOnce, TinyOptions(norm="batch"))
    before = values_of(run)
    stage_step(run)(0, 0, data_of(run))
    judged = [name for name in changed(before, values_of(run)) if name.startswith(("networks/disc", "optimizers/disc"))]
    assert judged and all("/moving_" in name for name in judged)


class Halves(AtOnce):
    """The discriminator's loss in two updates that both own it, both halves in one, or a half that is not finite."""

    halves: tuple[str, ...] = ("real", "fake")

    def optimizers(self):
        return {name: keras.optimizers.SGD(0.1) for name in ("generator", "discriminator")}

    def stages(self):
        (stage,) = super().stages()
        updates = [Update(name, ["discriminator"], getattr(self, name)) for name in self.halves]
        return [dataclasses.replace(stage, updates=[*updates, stage.updates[1]])]

    def real(self, nets, batch):
        return tf.reduce_mean(tf.nn.softplus(-nets.discriminator(batch.images))), {}

    def fake(self, nets, batch):
        return tf.reduce_mean(tf.nn.softplus(nets.discriminator(nets.generator(batch.latents)))), {}

    def sick(self, nets, batch):
        return self.real(nets, batch)[0] * np.nan, {}


@pytest.mark.parametrize(("halves", "equal"), [(("real", "fake"), ("judge",)), (("sick", "fake"), ("fake",))])
def test_two_updates_of_one_network_are_both_applied_and_one_that_is_not_finite_moves_nothing(halves, equal):
    found, expected = (
        trained(tiny_run(type("Chosen", (Halves,), {"halves": each}), TinyOptions(norm="batch")), 4)
        for each in (halves, equal)
    )
    assert_equal(found, {name: value for name, value in expected.items() if name.startswith("networks/")})
