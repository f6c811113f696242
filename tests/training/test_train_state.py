"""Mixed precision with its loss scale, statistics that are means over the ranks, and averaged weights."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from building import changed, data_of, stage_step, tiny_run, values_of
from hvdgan.distributed.ranks import Ranks
from hvdgan.files.png import save_grid
from hvdgan.recipe.display import to_uint8
from hvdgan.train import main
from hvdgan.training.build import build
from hvdgan.training.command import parse
from hvdgan.training.restore import restore
from hvdgan.training.saving import Commits
from launching import train
from saved import records
from tiny import Tiny, TinyOptions


@pytest.mark.parametrize(
    ("precision", "accumulate"), [pytest.param("mixed_bfloat16", 2, marks=pytest.mark.long), ("mixed_float16", 1)]
)
def test_networks_compute_in_it_and_weights_stay_float32(precision, accumulate):
    run = tiny_run(options=TinyOptions(norm="batch"), precision=precision, accumulate=accumulate)
    dense = [layer for layer in run.state.networks["generator"].layers if isinstance(layer, keras.layers.Dense)]
    assert {layer.compute_dtype for layer in dense} == {precision[6:]}
    assert {v.dtype for network in run.state.networks.values() for v in network.trainable_variables} == {"float32"}
    exact = tiny_run(options=TinyOptions(norm="batch"), accumulate=accumulate)
    before = values_of(run)
    for number in range(3):
        metrics, finite = stage_step(run)(number, number, data_of(run, number))
        expected, _ = stage_step(exact)(number, number, data_of(exact, number))
        assert all(finite)
        assert float(metrics["judge/loss"]) == pytest.approx(float(expected["judge/loss"]), rel=0.02)
    moved = changed(before, values_of(run))
    assert all(f"networks/{name}" in " ".join(moved) for name in run.state.networks)


def test_an_overflow_skips_the_update_and_halves_the_scale_until_it_fits():
    run = tiny_run(precision="mixed_float16")
    scale = run.state.loss_scales["judge"]
    scale.value.assign(2.0**40)
    before = values_of(run)
    metrics, (judged, _) = stage_step(run)(0, 0, data_of(run))
    assert not judged and float(metrics["judge/applied"]) == 0 and float(metrics["judge/loss_scale"]) == 2.0**40
    assert {n for n in changed(before, values_of(run)) if "discriminator" in n or "judge" in n} == {
        "loss_scales/judge/value"
    }
    assert float(scale.value) == 2.0**39
    step = stage_step(run)
    skipped = [1 - float(step(number, number, data_of(run))[0]["judge/applied"]) for number in range(1, 30)]
    assert skipped[0] == 1 and skipped[-1] == 0


def test_a_loss_that_overflows_is_in_no_record_and_ends_nothing_while_the_scale_can_be_lowered(tmp_path, capsys):
    """Its third step is not finite: two records of two steps, the second one of the last step's losses alone."""
    flags = "--recipe tiny:Exploding --image-size 8 --global-batch-size 8 --steps 4 --log-every 2 --max-bad-steps 1"
    command = [*flags.split(), "--precision", "mixed_float16", "--run-dir", str(tmp_path)]
    assert main(command) == 0, capsys.readouterr().err
    logged = records(tmp_path)
    assert [record["judge/applied"] for record in logged] == [1.0, 0.5]
    assert all(np.isfinite(record[name]) for record in logged for name in ("judge/loss", "judge/real", "fool/loss"))


class Fixed(Tiny):
    """Draws every sample from the same latents."""

    def sample(self, nets, batch):
        return nets.generator(tf.ones_like(batch.latents))


def test_a_grid_shows_what_the_averaged_weights_make():
    run, random = tiny_run(Fixed), np.random.default_rng(0)
    for trained, average in run.state.sampling_values()["generator"]:
        trained.assign(random.normal(size=trained.shape))
        average.assign(random.normal(size=average.shape))
    grid = run.sampler()["images"]
    for trained, average in run.state.sampling_values()["generator"]:
        trained.assign(average)
    expected = to_uint8(run.state.networks["generator"](tf.ones((len(grid), 8))).numpy())
    np.testing.assert_allclose(grid.astype(int), expected, atol=1)


@pytest.mark.parametrize(("recipe", "said"), [("Bytes", 1), ("Sigmoid", 1), ("OfTanh", 0)])
def test_pictures_of_another_range_are_named_once(tmp_path, recipe, said):
    flags = f"--recipe ranges:{recipe} --image-size 8 --global-batch-size 16 --steps 4 --sample-every 1 --report never"
    assert main([*flags.split(), "--run-dir", str(tmp_path)]) == 0
    assert (tmp_path / "log.txt").read_text().count("warning: sample() returns pictures from ") == said


@pytest.mark.long
def test_samples_and_evaluations_use_the_mean_over_ranks(tmp_path):
    """A checkpoint holds the mean, so one process that restores it draws and measures the same."""
    flags = "--recipe measured:Measured --image-size 8 --global-batch-size 16 --norm batch --holdout 0.1".split()
    flags += ["--steps", "6", "--run-dir", str(tmp_path / "run")]
    train(tmp_path, *flags, ranks=2)
    command = parse(flags)
    built = build(command.config, command.recipe, command.options, Ranks())
    restore(built, command.resume, Commits()).lock.close()
    (measured,) = [record for record in records(tmp_path / "run") if "eval/made" in record]
    for name, value in built.evaluator().items():
        assert measured[name] == pytest.approx(value, rel=1e-5), name
    save_grid(tmp_path / "grid.png", built.sampler()["images"])
    mine, theirs = (Image.open(tmp_path / name) for name in ("grid.png", "run/samples/step-00000006.png"))
    assert np.max(np.abs(np.asarray(mine, np.int16) - np.asarray(theirs, np.int16))) <= 1
