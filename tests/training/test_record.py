"""The files of a run: metrics.jsonl, TensorBoard events, log.txt, sample grids, and the report at its end.

Modules: training.samples, training.page.
"""

import json
import re
import time

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

import saved
from building import changed, data_of, stage_step, tiny_run, values_of
from hvdgan import report
from hvdgan.recipe.draws import Random
from hvdgan.recipe.showing import to_uint8
from hvdgan.training.loggers import find
from hvdgan.training.record import Record
from hvdgan.training.samples import Sampler
from tiny import TinyOptions

VALUES = {"images_per_sec": 100.0, "step_seconds": 0.5, "wait_seconds": 0.01, "judge/loss": 1.25}


def records(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def open_record(run_dir, **changes):
    record = Record(run_dir, **{"is_root": True, "start_step": 0, "total_steps": 10, **changes})
    record.open_loggers([find("tensorboard")], {}, stop=print)
    return record


def test_a_record_is_one_json_object_a_line_and_a_tensorboard_event(tmp_path, capsys):
    record = open_record(tmp_path)
    record.write(2, "joint", 1, VALUES)
    record.say("half way")
    record.close()
    assert records(tmp_path) == [{"step": 2, "stage": "joint", "stage_step": 1, **VALUES}]
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()  # as TensorBoard reads them
    assert set(events.PluginTagToContent("scalars")) == set(VALUES)
    for name, value in VALUES.items():
        (event,) = events.Tensors(name)
        assert event.step == 2 and tf.make_ndarray(event.tensor_proto) == pytest.approx(value)
    shown = capsys.readouterr().err
    assert "step 2/10 joint judge/loss 1.25 100.0 images/s, 0:00:04 left" in shown
    log = (tmp_path / "log.txt").read_text()
    assert "judge/loss 1.25" in log and log.rstrip().endswith("half way")


def test_a_resumed_run_drops_the_records_that_it_computes_again(tmp_path):
    record = open_record(tmp_path)
    for step in (2, 4, 6):
        record.write(step, "joint", step, VALUES)
    record.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 8, "sta')  # the run was killed here
    time.sleep(1.1)  # TensorBoard reads files in the order of the seconds in their names
    record = open_record(tmp_path, start_step=4)
    record.write(6, "joint", 6, {**VALUES, "judge/loss": 2.0})
    record.close()
    kept = [(2, 1.25), (4, 1.25), (6, 2.0)]
    assert [(each["step"], each["judge/loss"]) for each in records(tmp_path)] == kept
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload().Tensors("judge/loss")
    assert [(event.step, float(tf.make_ndarray(event.tensor_proto))) for event in events] == kept


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


reports = pytest.mark.reports


def sentence(run_dir):
    """The verdict of the report."""
    return re.search(r'<p class="sentence">(.*?)</p>', (run_dir / "report.html").read_text())[1]


@reports
def test_a_finished_run_writes_its_report_again_at_each_end(tmp_path, capfd):
    assert saved.train(tmp_path / "run") == 0
    assert sentence(tmp_path / "run") == "Finished at step 8"
    assert f"hvdgan: report in {tmp_path / 'run' / 'report.html'}\n" in capfd.readouterr().err
    before = (tmp_path / "run" / "report.html").read_text()
    assert saved.train(tmp_path / "run", "--max-steps", "8") == 0  # nothing is left to do
    assert sentence(tmp_path / "run") == "Finished at step 8"
    assert (tmp_path / "run" / "report.html").read_text() != before


@reports
@pytest.mark.parametrize("verdict", ["Failed after step", "Stopped at step 4 of 8, and saved"])
def test_a_run_that_ends_early_names_the_command_which_says_why(tmp_path, capfd, verdict):
    folder, fails = tmp_path / "run", verdict.startswith("Failed")
    if fails:
        assert saved.train(folder, "--recipe", "tiny:Exploding", "--max-bad-steps", "1") == 1
    else:
        assert saved.train(folder, "--max-steps", "4") == 0
        (folder / "stop").touch()
        assert saved.train(folder) == 75
        (folder / "report.html").unlink()
    assert f"hvdgan: python -m hvdgan.report {folder} makes a page about this run\n" in capfd.readouterr().err
    assert not (folder / "report.html").exists() and report.main([str(folder)]) == 0
    assert sentence(folder).startswith(verdict)
    assert not fails or "loss or gradients are not finite" in (folder / "report.html").read_text()
