"""Sample grids."""

import numpy as np
import tensorflow as tf

import saved
from building import changed, data_of, stage_step, tiny_run, values_of
from hvdgan.recipe.draws import Random
from hvdgan.recipe.showing import to_uint8
from hvdgan.training.samples import Sampler
from tiny import TinyOptions


def test_samples_are_drawn_by_the_averaged_weights_in_inference_mode_and_change_nothing():
    run = tiny_run(options=TinyOptions(norm="batch"), ema_decay=0.5)
    step = stage_step(run)
    for number in range(3):
        step(number, number, data_of(run, number))
    before = values_of(run)
    drawn = Sampler(run.recipe, run.state, run.source, run.config.seed)()
    assert not changed(before, values_of(run))
    # By hand: the averages are put in the network's place.
    network = run.state.networks["generator"]
    for variable in network.variables:
        variable.assign(before[f"ema/generator/{variable.path}"])
    random = Random(0, tf.constant(-1, tf.int64), 0, 64)
    images = network(run.recipe.draw(random.scoped("draw"))["latents"], training=False)
    np.testing.assert_array_equal(drawn, to_uint8(images.numpy()))


def test_a_grid_that_cannot_be_written_is_a_warning(tmp_path, monkeypatch, capsys):
    """Of any kind: for a user without a name and without HOME, matplotlib raises a RuntimeError."""

    def failing(sampler, path, samples):
        raise RuntimeError(path.name)

    monkeypatch.setattr(Sampler, "save", failing)
    assert saved.train(tmp_path) == 0 and saved.steps(tmp_path)[-1] == 8
    line = "warning: samples cannot be written: RuntimeError('real.png'); the run continues"
    assert capsys.readouterr().err.count(line) == (tmp_path / "log.txt").read_text().count(line) == 1
