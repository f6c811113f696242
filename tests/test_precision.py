import keras
import numpy as np
import pytest
import tensorflow as tf

from building import changed, data_of, stage_step, tiny_run, values_of
from hvdgan.scaling import LossScale
from tiny import Exploding, Tiny, TinyOptions


@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_networks_compute_in_it_and_weights_stay_float32(precision, accumulate):
    run = tiny_run(options=TinyOptions(norm="batch"), precision=precision, accumulate=accumulate)
    dense = [layer for layer in run.state.networks["generator"].layers if isinstance(layer, keras.layers.Dense)]
    assert {layer.compute_dtype for layer in dense} == {precision[6:]}
    assert {v.dtype for network in run.state.networks.values() for v in network.trainable_variables} == {"float32"}
    exact = tiny_run(options=TinyOptions(norm="batch"), accumulate=accumulate)
    before = values_of(run)
    for number in range(3):
        metrics, may_go_on = stage_step(run)(number, number, data_of(run, number))
        expected, _ = stage_step(exact)(number, number, data_of(exact, number))
        assert all(may_go_on.values())
        assert float(metrics["judge/loss"]) == pytest.approx(float(expected["judge/loss"]), rel=0.02)
    moved = changed(before, values_of(run))
    assert all(f"networks/{name}" in " ".join(moved) for name in run.state.networks)


def test_a_run_in_float32_after_another_is_in_float32():
    tiny_run(precision="mixed_float16")
    assert keras.config.dtype_policy().name == "mixed_float16"
    tiny_run()
    assert keras.config.dtype_policy().name == "float32"


def test_the_loss_scale_does_not_change_the_step():
    """Adam's mean after one step, from a scale of 2**15 and of 1: the same but for the rounding to float16."""

    def momentum(scale):
        run = tiny_run(precision="mixed_float16")
        run.state.loss_scales["judge"].value.assign(scale)
        stage_step(run)(0, 0, data_of(run))
        return values_of(run)["optimizers/discriminator/discriminator/dense_2/kernel/momentum"]

    np.testing.assert_allclose(momentum(2.0**10), momentum(1.0), rtol=0.02, atol=1e-5)


def test_an_overflow_skips_the_update_and_halves_the_scale_until_it_fits():
    run = tiny_run(precision="mixed_float16")
    scale = run.state.loss_scales["judge"]
    scale.value.assign(2.0**40)
    before = values_of(run)
    metrics, may_go_on = stage_step(run)(0, 0, data_of(run))
    assert may_go_on["judge"] and float(metrics["judge/applied"]) == 0 and float(metrics["judge/loss_scale"]) == 2.0**40
    assert {n for n in changed(before, values_of(run)) if "discriminator" in n or "judge" in n} == {
        "loss_scales/judge/value"
    }
    assert float(scale.value) == 2.0**39
    step = stage_step(run)
    skipped = [1 - float(step(number, number, data_of(run))[0]["judge/applied"]) for number in range(1, 30)]
    assert skipped[0] == 1 and skipped[-1] == 0


def test_at_the_lowest_scale_gradients_that_are_not_finite_end_the_training():
    run = tiny_run(Exploding, precision="mixed_float16")
    run.state.loss_scales["judge"].value.assign(2.0)
    step = stage_step(run)
    assert step(2, 2, data_of(run))[1]["judge"]
    assert not step(2, 2, data_of(run))[1]["judge"]
    assert float(run.state.loss_scales["judge"].value) == 1.0


def test_the_scale_grows_after_two_thousand_finite_gradients():
    scale = LossScale.new("judge")
    scale.held.assign(1998)
    scale.adapt(tf.constant(True))
    assert float(scale.value) == 2.0**15
    scale.adapt(tf.constant(True))
    assert float(scale.value) == 2.0**16 and int(scale.held) == 0
    scale.adapt(tf.constant(False))
    assert float(scale.value) == 2.0**15


def test_the_scales_are_in_the_checkpoint():
    assert {"loss_scales/judge/value", "loss_scales/fool/held"} <= values_of(tiny_run(precision="mixed_float16")).keys()
    assert not [name for name in values_of(tiny_run(Tiny)) if "loss_scales" in name]
