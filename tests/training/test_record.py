"""The files of a run: metrics.jsonl, TensorBoard events and log.txt.

Modules: training.record.
"""

import json
import time

import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

from hvdgan.training.loggers import find
from hvdgan.training.record import Record

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
