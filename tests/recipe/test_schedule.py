"""Values of schedules over the steps of a stage, and where a run uses them.
Modules: recipe.schedule, recipe.scheduled"""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from building import data_of, stage_step, tiny_run, trained
from hvdgan.errors import UserError
from hvdgan.recipe import Schedule
from hvdgan.recipe.schedule import value_at
from hvdgan.sample import main as sample
from hvdgan.train import main
from plain_loop import AtOnce, assert_equal, plain_loop
from saved import measured, state
from schedules import Shown
from tiny import Tiny, TinyOptions

STEPS, EPOCH = 60, (30, 7)
STEP, SHARE = np.arange(STEPS), np.arange(STEPS) / (STEPS - 1)
AFTER = np.maximum(STEP - 4, 0)
OF_EPOCH = AFTER * 7 // 30
FALLING = np.concatenate([np.ones(4), np.linspace(1, 0, 56)])


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Schedule(0.4), np.full(STEPS, 0.4)),
        (Schedule(0.4, 0, "constant"), np.full(STEPS, 0.4)),
        (Schedule(0.4, 0.1), np.linspace(0.4, 0.1, STEPS)),
        (Schedule(1, 2), np.linspace(1, 2, STEPS)),
        (Schedule(0.4, 0.1, "cosine"), 0.1 + 0.3 * np.cos(np.pi / 2 * SHARE) ** 2),
        (Schedule(0.9, 0.99, "cosine"), 0.9 + 0.09 * np.sin(np.pi / 2 * SHARE) ** 2),
        (Schedule(0.4, 0.1, "exponential"), np.geomspace(0.4, 0.1, STEPS)),
        (Schedule(0.4, kind="exponential", factor=0.999), 0.4 * 0.999**STEP),
        (Schedule(0.4, kind="exponential", factor=0.1, every=20), np.repeat([0.4, 0.04, 0.004], 20)),
        (Schedule(0.4, kind="exponential", factor=0.5, epochs=1, hold_steps=4), 0.4 * 0.5**OF_EPOCH),
        (Schedule(1, 0, hold_steps=4), FALLING),
        (Schedule(1, 0, hold_steps=4, every=5), FALLING[np.where(STEP < 4, 0, 4 + AFTER // 5 * 5)]),
        (Schedule(1, 0, hold_steps=4, epochs=1), FALLING[4 + np.searchsorted(OF_EPOCH[4:], OF_EPOCH)]),
        (Schedule(1, 0, warmup_steps=4), np.concatenate([[0.2, 0.4, 0.6, 0.8], np.linspace(1, 0, 56)])),
    ],
    ids=lambda value: str(value)[9:] if isinstance(value, Schedule) else "",
)
def test_values_are_those_of_numpy(schedule, expected):
    found = [value_at(schedule, tf.constant(step, tf.int64), STEPS, EPOCH).numpy() for step in STEP]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["Adam", pytest.param("AdamW", marks=pytest.mark.long)])
def test_rate_and_betas_are_those_of_a_plain_keras_loop_that_sets_them_before_each_step(monkeypatch, name):
    """Adam has a kernel of its own here, and AdamW has not."""
    optimizer = getattr(keras.optimizers, name)
    rates, means, squares = Schedule(1e-3, 1e-4, "exponential"), Schedule(0.5, 0.0), Schedule(0.9, 0.99, "cosine")
    monkeypatch.setattr(AtOnce, "judges", {"learning_rate": rates, "betas": (means, squares)})
    monkeypatch.setattr(AtOnce, "optimizers", lambda self: {name: optimizer(1e-3) for name in self.networks()})

    def before(step, optimizers):
        changed = optimizers["discriminator"]
        changed.learning_rate = 1e-3 * 0.1 ** (step / 19)
        changed.beta_1, changed.beta_2 = 0.5 * (1 - step / 19), 0.945 - 0.045 * np.cos(np.pi * step / 19)

    run = tiny_run(AtOnce, TinyOptions(norm="batch", steps=20), ema_decay=0.5)
    expected = plain_loop(run, before=before)
    assert_equal(trained(run), expected, 1e-6)


def test_a_rate_falls_with_each_epoch_of_the_data():
    """1797 digits in batches of 16 are 112.3 steps."""

    class ByEpoch(Tiny):
        def stages(self):
            rate = Schedule(1e-3, kind="exponential", factor=0.9, epochs=1)
            (stage,) = super().stages()
            updates = [dataclasses.replace(update, learning_rate=rate) for update in stage.updates]
            return [dataclasses.replace(stage, steps=999, updates=updates)]

    run, found = tiny_run(ByEpoch), []
    assert len(run.source) == 1797
    for step in (0, 112, 113, 224, 225, 998):
        stage_step(run)(step, step, data_of(run))
        found.append(float(run.state.optimizers["generator"].learning_rate))
    assert found == pytest.approx([1e-3 * 0.9**epoch for epoch in (0, 0, 1, 1, 2, 8)], rel=1e-6)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightedOptions(TinyOptions):
    """Options of Weighted."""

    weight: float = 3.0
    """weight of a part of the loss"""


class Weighted(Tiny):
    """A weight that is an option in the first stage, falls in the second, and stays in the third."""

    Options = WeightedOptions

    def stages(self):
        (stage,) = super().stages()
        values = {"weight": Schedule(2, 0.5), "ema_half_life": Schedule(8, 800, "exponential")}
        falling = dataclasses.replace(stage, name="falling", schedules={**values, "augment": Schedule(0, 1)})
        return [dataclasses.replace(stage, name="before"), falling, dataclasses.replace(stage, name="after")]

    def judge(self, nets, batch):
        weight = batch.schedule("weight")
        real, fake = (batch.augment(each, "x") for each in (batch.images, nets.generator(batch.latents)))
        loss = weight * tf.reduce_mean(tf.nn.softplus(nets.discriminator(fake) - nets.discriminator(real)))
        return loss, {"weight": weight, "moved": tf.reduce_mean(tf.abs(real - batch.images))}

    def sample(self, nets, batch):
        return super().sample(nets, batch) * 0.0 + batch.schedule("weight") / 3


FLAGS = "--recipe test_schedule:Weighted --image-size 8 --global-batch-size 8 --log-every 1 --sample-every 0".split()


@pytest.mark.long
def test_losses_and_samples_read_a_value_and_a_resume_in_the_middle_or_after_it_has_the_same_bits(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert main([*FLAGS, "--run-dir", str(whole)]) == 0
    for last in (6, 8, 12):
        assert main([*FLAGS, "--run-dir", str(cut), "--max-steps", str(last)]) == 0
        assert sample([str(cut), "--samples", "2", "--overwrite", "--out", str(tmp_path / "x.npz")]) == 0
        pixel = ({6: 1.5, 8: 0.5, 12: 0.5}[last] / 3 + 1) * 127.5
        np.testing.assert_allclose(np.load(tmp_path / "x.npz")["samples"], pixel, atol=0.5)
    assert state(cut, 12) == state(whole, 12) and not any("weight" in name for name in state(cut, 12))
    steps = measured(whole)
    assert [each["judge/weight"] for each in steps] == pytest.approx([3, 3, 3, 3, 2, 1.5, 1, *[0.5] * 5])
    assert [each["judge/moved"] > 0 for each in steps] == [False] * 5 + [True] * 7
    assert measured(cut) == steps


def test_the_average_has_the_half_life_of_its_schedule_and_micro_batches_read_a_value():
    run, name = tiny_run(Weighted, WeightedOptions(), accumulate=2), "generator/generator/dense/kernel"
    half_lives = np.geomspace(8, 800, 4)
    for step in range(4):
        before, count = run.state.tensors()[f"ema/{name}"].numpy(), 100 + step
        metrics, _ = stage_step(run, 1)(count, step, data_of(run, step))
        assert float(metrics["judge/weight"]) == pytest.approx(2 - step / 2)
        kept = 0.5 ** (16 / min(half_lives[step], 0.05 * 16 * count))
        now = run.state.tensors()[f"networks/{name}"].numpy()
        expected = kept * before + (1 - kept) * now
        np.testing.assert_allclose(run.state.tensors()[f"ema/{name}"].numpy(), expected, rtol=1e-5, atol=1e-7)


class Misread(Weighted):
    def judge(self, nets, batch):
        return batch.schedule("wieght"), {}


@pytest.mark.parametrize(
    ("recipe", "settings", "complaint"),
    [
        (Weighted, {"ema_half_life": 9.0}, "--ema-half-life: the recipe's stages have a schedule ema_half_life; leave"),
        (Weighted, {"ema_decay": 0.9}, "--ema-decay: the recipe's stages have a schedule"),
        (Weighted, {"ada": 0.6}, "--ada: the recipe's stages have a schedule augment"),
        (
            type("Deaf", (Weighted,), {"judge": Tiny.judge}),
            {},
            "schedule augment: no loss of the recipe calls batch.aug",
        ),
        (Misread, {}, "there is no schedule wieght, nor an option of that name; the stages have"),
    ],
)
def test_schedules_without_effect_and_names_that_are_unknown_are_refused(recipe, settings, complaint):
    with pytest.raises(UserError, match=complaint):
        tiny_run(recipe, WeightedOptions(), **settings)


def test_the_stages_that_the_page_shows_train():
    run = tiny_run(Shown)
    weights = [stage_step(run)(step, step, data_of(run))[0]["judge/weight"] for step in (0, 499)]
    np.testing.assert_allclose(weights, [10.0, 1.0], rtol=1e-6)
