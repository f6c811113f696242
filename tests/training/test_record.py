"""The files of a run: metrics.jsonl, TensorBoard events and log.txt.

Modules: training.record.
"""

import fcntl
import json
import os
import struct
import sys
import termios
import time

import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

from hvdgan.training.record import Record

VALUES = {"images_per_sec": 100.0, "step_seconds": 0.5, "wait_seconds": 0.01, "judge/loss": 1.25}


class Terminal:
    """A terminal of 100 columns, to which this process writes as its stderr."""

    def __init__(self, monkeypatch):
        self.master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        self.file = os.fdopen(slave, "w", encoding="utf-8")
        monkeypatch.setattr(sys, "stderr", self.file)

    def close(self):
        """Return each state that a line of the terminal has had."""
        self.file.flush()
        shown = os.read(self.master, 100_000).decode()
        self.file.close()
        os.close(self.master)
        return [state.strip() for state in shown.replace("\n", "\r").split("\r") if state.strip()]


def records(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def open_record(run_dir, **changes):
    return Record(run_dir, **{"is_root": True, "start_step": 0, "total_steps": 10, **changes})


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


def test_a_terminal_shows_a_bar_below_the_lines(tmp_path, monkeypatch):
    terminal = Terminal(monkeypatch)
    record = open_record(tmp_path, start_step=4)
    record.advance("joint")
    record.write(5, "joint", 1, VALUES)
    record.say("half way")
    record.close()
    states = terminal.close()
    bars = [state for state in states if "/10" in state]
    assert bars[0].startswith("40%|") and " 4/10 " in bars[0]  # a resumed run begins where it was
    assert bars[-1].startswith("joint:  50%|") and " 5/10 " in bars[-1] and "judge/loss 1.25 100.0 images/s" in bars[-1]
    # The bar before the line may have the same text as the one after it.
    assert states.count("half way") == 1 and bars[-1] in states[states.index("half way") :]
    assert (tmp_path / "log.txt").read_text().rstrip().endswith("half way")


def test_other_ranks_write_and_say_nothing(tmp_path, capsys):
    record = open_record(tmp_path / "run", is_root=False)
    record.write(2, "joint", 1, VALUES)
    record.say("half way")
    record.advance("joint")
    record.close()
    assert not (tmp_path / "run").exists()
    assert capsys.readouterr() == ("", "")


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
