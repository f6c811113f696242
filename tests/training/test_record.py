import json
from fractions import Fraction

import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hvdgan.distributed.ranks import Ranks
from hvdgan.recipe.stages import Plateau
from hvdgan.training.monitoring.plateau import Watch
from hvdgan.training.monitoring.record import Record
from hvdgan.training.monitoring.window import Window, merge_states

VALUES = {"images_per_sec": 100.0, "step_seconds": 0.5, "wait_seconds": 0.01, "judge/loss": 1.25}


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
    record = open_record(tmp_path, start_step=4)
    record.write(6, "joint", 6, {**VALUES, "judge/loss": 2.0})
    record.close()
    assert [(each["step"], each["judge/loss"]) for each in records(tmp_path)] == [(2, 1.25), (4, 1.25), (6, 2.0)]


def test_a_window_averages_each_metric_over_the_steps_that_had_it():
    window = Window()
    window.add({"judge/loss": tf.constant(1.0), "wait_seconds": 0.1, "step_seconds": 0.5})
    window.add(
        {"judge/loss": tf.constant(2.0), "fool/loss": tf.constant(5.0), "wait_seconds": 0.3, "step_seconds": 1.5}
    )
    assert window.means() == pytest.approx(
        {"step_seconds": 1.0, "wait_seconds": 0.2, "judge/loss": 1.5, "fool/loss": 5.0}
    )


@pytest.mark.parametrize("size", range(2, 11))
def test_the_merged_window_of_uneven_slices_has_the_mean_over_all_samples_and_the_count_of_each(size):
    for batch_size in range(size, size + 25):
        ranks = [Ranks(rank=rank, size=size, slice_unit=1) for rank in range(size)]
        weights = ranks[0].weights(batch_size)
        local = [last - first for first, last in (each.slice_of(batch_size) for each in ranks)]
        mean = float(Fraction(sum(samples * (rank + 1) for rank, samples in enumerate(local)), batch_size))
        for count in range(1, 51):
            states = [{"judge/loss": [(rank + 1.0) * count, count]} for rank in range(size)]
            merged = merge_states(states, weights)
            where = f"{batch_size} samples, {count} steps"
            assert merged["judge/loss"][1] == count, where
            window = Window(json.loads(json.dumps(merged)))
            assert window.means()["judge/loss"] == pytest.approx(mean, rel=1e-12), where
            window.add({"judge/loss": mean})
            assert window.state()["judge/loss"][1] == count + 1


def test_ranks_of_other_counts_merge_to_the_mean_of_their_means():
    states = [{"a": [6.0, 3], "b": [1.0, 1]}, {"a": [8.0, 2]}, {"a": [5.0, 1]}]
    weights = [1.5, 0.75, 0.75]
    merged = merge_states(states, weights)
    assert merged["a"][1] == 2 and merged["b"] == [1.0, 1]
    assert Window(merged).means()["a"] == pytest.approx((1.5 * 2 + 0.75 * 4 + 0.75 * 5) / 3)


def test_equal_slices_merge_to_the_same_bits_as_a_plain_mean():
    totals = [0.1, 0.2, 0.7]
    merged = merge_states([{"a": [total, 7]} for total in totals], [1.0] * 3)
    assert merged == {"a": [sum(totals) / 3, 7]}


def test_a_window_that_was_merged_to_no_steps_is_empty():
    window = Window({"judge/loss": [0.7, 0], "fool/loss": [4.0, 2]})
    assert window.means() == {"fool/loss": 2.0}
    window.add({"judge/loss": 3.0})
    assert window.means() == {"fool/loss": 2.0, "judge/loss": 3.0}


def test_a_plateau_goes_on_from_a_merged_window():
    weights = Ranks(size=8, slice_unit=1).weights(9)
    merged = merge_states([{"judge/loss": [3.0 * 0.5, 3]}] * 8, weights)
    watch = Watch(Plateau("judge/loss", window=4, patience=1), {"best": 0.6, "waited": 0, "window": merged})
    watch.add({"judge/loss": 0.5})
    assert not watch.is_over(4, Ranks(), [1.0])
    assert watch.state()["best"] == pytest.approx(0.5)
