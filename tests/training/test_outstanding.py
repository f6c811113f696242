"""The host never waits for the newest step between two logs, and the results are those of a host that does.

Modules: training.loop, training.periodic, training.periodic, training.step.
"""

import contextlib
import dataclasses
import json
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

import saved
import small
from building import changed, data_of, stage_step, tiny_run, values_of
from hvdgan.networks.devices import device
from hvdgan.recipe.stages import Stage, Update
from hvdgan.training.loop import Loop, steps_from
from hvdgan.training.observations import Observations
from hvdgan.training.pending import PendingStep as PendingStep
from hvdgan.training.pending import PendingSteps
from hvdgan.training.periodic import PeriodicTasks
from hvdgan.training.record import Record
from hvdgan.training.resume_point import Commits, ResumePoint
from hvdgan.training.step import StageStep
from hvdgan.training.stopping import STOPPED, Stopping
from readings import recorded
from tiny import Exploding, Tiny, TinyOptions


class Late:
    """Verdicts that note how many steps had begun when they were requested; and when, in which thread, they were read.

    They can be read when a number of steps have begun after their own, or all steps until something is due.
    """

    def __init__(self, step, begun, requested, read, after):
        self.step, self.begun, self.requested, self.read, self.after = step, begun, requested, read, after

    def numpy(self):
        self.requested.append((self.step, len(self.begun)))
        self.begun.wait_for(self.after)
        self.read.append((self.step, len(self.begun), threading.current_thread() is threading.main_thread()))
        return np.array([True, True])


class Events(list):
    """A list for which threads can wait."""

    def __init__(self):
        super().__init__()
        self.changed = threading.Condition()

    def append(self, each):
        with self.changed:
            super().append(each)
            self.changed.notify_all()

    def wait_for(self, count):
        with self.changed:
            assert self.changed.wait_for(lambda: len(self) >= count, timeout=5), (count, self)


class Batches(contextlib.AbstractContextManager):
    """Endless batches of nothing."""

    loaded, bad_files = 0, ()

    def __exit__(self, *exception):
        pass

    def __iter__(self):
        return self

    def __next__(self):
        return {}


@pytest.fixture
def reads(tmp_path):
    """A function that trains without computing, and returns (step, steps begun, whether by the loop) of each reading.

    Verdicts can be read when `later` steps have begun after their own; something is due after every `due` steps. Where
    several steps may wait, no step begins before the verdicts of the one before are requested.
    """

    def run(behind, later=0, due=12, **settings):
        run = tiny_run(options=TinyOptions(steps=12), run_dir=tmp_path, **settings)
        point = ResumePoint()
        record = Record(run.run_dir, is_root=False, start_step=0, total_steps=12)
        observations = Observations(run, point, record)
        between = PeriodicTasks(run, point, record, Commits(), observations)
        stopping = Stopping(run.ranks, tmp_path / "stop", None)
        begun, requested, read = Events(), Events(), []

        def compute(step, stage_step, data):
            requested.wait_for(step if behind > 1 else 0)
            begun.append(step)
            after = min(step + 1 + later, (step // due + 1) * due, 12)
            return {"fool/loss": 1.0}, Late(step, begun, requested, read, after)

        steps = ((step, at, compute) for step, at, _ in steps_from(run, 0))
        assert Loop(run, point, stopping, PendingSteps(observations, behind), between).train(Batches(), steps)
        assert sorted(step for step, *_ in read) == list(range(12))
        assert behind == 1 or requested == [(step, step + 1) for step in range(12)]
        return read

    return run


PERIODS = {"sample_every": 0, "checkpoint_every": 0, "check_ranks_every": 0}


def test_between_two_logs_the_loop_reads_only_steps_after_which_another_has_begun(reads):
    read = reads(1, log_every=6, **PERIODS)
    assert [begun for step, begun, _ in read if begun == step + 1] == [6, 12]
    assert max(begun - step for step, begun, _ in read) == 2


def test_four_steps_may_begin_before_a_verdict_is_known_and_the_loop_asks_for_none(reads):
    """Each is requested when its step has begun and the next has not, although those of four steps are not known."""
    read = reads(4, later=4, due=6, log_every=6, **PERIODS)
    assert not any(by_loop for *_, by_loop in read)
    assert max(begun - step for step, begun, _ in read) == 5


def test_the_number_of_steps_that_wait_is_bounded(reads):
    with pytest.raises(AssertionError, match=r"\[0, 1, 2, 3, 4\]"):
        reads(4, later=5, log_every=12, **PERIODS)


@pytest.mark.parametrize("period", ["sample_every", "checkpoint_every", "check_ranks_every"])
def test_what_is_due_waits_for_all_steps(reads, period):
    for behind in (1, 4):
        read = reads(behind, later=behind, due=5, log_every=12, **{**PERIODS, period: 5})
        assert all(begun <= 5 for step, begun, _ in read if step < 5)
        assert all(begun <= 10 for step, begun, _ in read if step < 10)


VAE_GAN = [*"--recipe vae_gan --image-size 32 --global-batch-size 4".split(), *small.flags("vae_gan")]


@pytest.mark.parametrize(
    ("flags", "more"),
    [
        (saved.TINY, []),
        (saved.TINY, ["--precision", "mixed_float16"]),
        (saved.TINY, ["--accumulate", "2"]),
        (["--recipe", "test_outstanding:Sometimes", *saved.TINY[2:]], []),
        pytest.param(VAE_GAN, [], marks=pytest.mark.long),
    ],
)
def test_a_run_reads_nothing_of_its_device_between_two_logs_and_other_threads_once_per_step(
    tmp_path, monkeypatch, flags, more
):
    seen = recorded(monkeypatch)
    more = [*"--steps 16 --log-every 8 --sample-every 0 --report never".split(), *more]
    with device.computing_as(dataclasses.replace(device.CPU, branches=False, steps_behind=4)):
        assert saved.train(tmp_path, *more, flags=flags) == 0
    assert set(seen.by_loop) == {0, 8, 16} and seen.by_others == seen.begun == 16


def step_with(run, branches):
    """The step of the first stage, with branches or without, to be traced."""
    with device.computing_as(dataclasses.replace(device.CPU, branches=branches)):
        return stage_step(run).with_ranks(run.ranks)


@pytest.mark.parametrize("recipe", [Tiny, Exploding])
@pytest.mark.parametrize("options", [{}, {"precision": "mixed_float16"}, {"accumulate": 2}])
def test_selection_gives_the_bits_of_a_branch(recipe, options):
    """Also in the third step of Exploding, whose judge is not finite."""

    def trained(branches):
        run = tiny_run(recipe, TinyOptions(norm="batch"), **options)
        step = step_with(run, branches)
        results = [step(number, number, data_of(run)) for number in range(4)]
        verdicts = [finite.numpy().tolist() for _, finite in results]
        metrics = [{name: float(value) for name, value in each.items()} for each, _ in results]
        return values_of(run), verdicts, str(metrics)

    by_branch, by_selection = trained(True), trained(False)
    assert not changed(by_branch[0], by_selection[0])
    assert by_branch[1:] == by_selection[1:]
    skips = [step for step, (judged, _) in enumerate(by_branch[1]) if not judged]
    assert recipe is Tiny or 2 in skips


class Sometimes(Tiny):
    """A generator that moves in every other step, and a judge whose gradients are clipped."""

    def stages(self):
        judge = Update("judge", owns=["discriminator"], loss=self.judge, clip_norm=0.1)
        fool = Update("fool", owns=["generator"], loss=self.fool, only_if=lambda metrics: metrics["odd"] > 0.5)
        return [Stage("adversarial", self.options.steps, [judge, fool])]

    def fool(self, nets, batch):
        return super().fool(nets, batch)[0], {"odd": tf.cast(batch.random.step % 2, tf.float32)}


def test_an_update_that_its_recipe_does_not_want_is_selected_too():
    kept = []
    for branches in (True, False):
        run = tiny_run(Sometimes, TinyOptions(steps=8))
        step = step_with(run, branches)
        applied = [float(step(number, number, data_of(run, number))[0]["fool/applied"]) for number in range(8)]
        kept.append((values_of(run), applied))
    assert not changed(kept[0][0], kept[1][0])
    assert kept[0][1] == kept[1][1] and kept[0][1] == 4 * [0.0, 1.0]


def test_a_graph_without_branches_has_none():
    run = tiny_run(Tiny, TinyOptions(norm="batch"))

    def branches_of(one):
        one(0, 0, data_of(run))
        graph = one.function(one.stage.due(0)).get_concrete_function(
            tf.constant(0, tf.int64), tf.constant(0, tf.int64), {"images": data_of(run)["images"]}
        )
        return {each.type for each in graph.graph.get_operations()} & {"If", "StatelessIf", "While"}

    assert branches_of(step_with(run, True))
    assert not branches_of(step_with(run, False))


class Resting(Tiny):
    """No update is due in every other step."""

    def stages(self):
        (stage,) = super().stages()
        return [dataclasses.replace(stage, updates=[dataclasses.replace(each, every=2) for each in stage.updates])]


@pytest.mark.parametrize("behind", [1, 4])
def test_a_step_without_an_update_has_no_verdict(tmp_path, behind):
    flags = ["--recipe", "test_outstanding:Resting", *saved.TINY[2:]]
    with device.computing_as(dataclasses.replace(device.CPU, steps_behind=behind)):
        assert saved.train(tmp_path, "--max-bad-steps", "1", flags=flags) == 0
    assert saved.manifest(tmp_path, 8)["progress"]["bad_updates"] == {}


@pytest.mark.parametrize("behind", [1, 4])
def test_a_run_ends_after_as_many_bad_updates_whatever_waits(tmp_path, capsys, behind):
    flags = ["--recipe", "test_bad_updates:Infinite", *saved.TINY[2:]]
    flags[flags.index("--log-every") + 1] = "50"
    with device.computing_as(dataclasses.replace(device.CPU, steps_behind=behind)):
        assert saved.train(tmp_path, "--max-bad-steps", "3", flags=flags) == 1
    error = capsys.readouterr().err
    assert "step 2, stage adversarial, update fool" in error and "3 step(s) in a row" in error
    assert "step 3, " not in error and f"computed again with the weights after step {2 + behind})" in error


def test_a_request_to_stop_waits_for_all_steps(tmp_path, monkeypatch):
    """The checkpoint has counted every update that was skipped."""
    begin = StageStep.__call__

    def stopping(compute, step, *more):
        if step == 4:
            (tmp_path / "stop").touch()
        return begin(compute, step, *more)

    monkeypatch.setattr("hvdgan.training.stopping.CHECK_SECONDS", 0.0)
    monkeypatch.setattr(StageStep, "__call__", stopping)
    flags = ["--recipe", "test_bad_updates:Infinite", *saved.TINY[2:-2], "--log-every", "50"]
    with device.computing_as(dataclasses.replace(device.CPU, steps_behind=4)):
        assert saved.train(tmp_path, flags=flags) == STOPPED
    assert saved.manifest(tmp_path, 5)["progress"]["bad_updates"] == {"adversarial/fool": 5}


def test_a_run_whose_steps_wait_has_the_bits_of_one_whose_steps_do_not(tmp_path):
    """Through the ends of three stages, samples, evaluations, checkpoints and a resume in the middle of a stage."""
    flags = "--recipe tiny:Staged --image-size 8 --global-batch-size 8 --steps 8 --log-every 5".split()
    flags += "--sample-every 3 --checkpoint-every 6 --eval-every 7 --eval-samples 16".split()
    assert saved.train(tmp_path / "plain", flags=flags) == 0
    with device.computing_as(dataclasses.replace(device.CPU, branches=False, steps_behind=4)):
        for most in ("13", "24"):
            assert saved.train(tmp_path / "waiting", "--max-steps", most, flags=flags) == 0
    for step in (16, 18, 24):
        assert saved.state(tmp_path / "waiting", step) == saved.state(tmp_path / "plain", step), step
    plain, waiting = (
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("plain", "waiting")
    )
    for step in (5, 7, 10, 14, 20, 21, 24):
        figures = [
            [{name: each[name] for name in each if "/" in name} for each in lines if each["step"] == step]
            for lines in (plain, waiting)
        ]
        assert figures[0] and figures[0] == figures[1], step


def test_times_of_steps_add_up_to_the_time_that_they_took(tmp_path):
    """Each record is a mean over two steps, whose verdicts are read one step late."""
    begin = time.perf_counter()
    assert saved.train(tmp_path) == 0
    took = time.perf_counter() - begin
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    times = [json.loads(line)["step_seconds"] for line in lines]
    assert 0 < 2 * sum(times) < took


@pytest.mark.parametrize("most", [1, 4])
def test_step_seconds_are_the_time_of_the_steps_without_the_work_between_them(monkeypatch, most):
    """Steps of 1 s, six between two logs of 5 s each; the clock is the test's own."""
    now, seen, at = [0.0], [], tiny_run().schedule.at(0)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    class Seen:
        def add(self, step, at, data, metrics, skipped, seconds, newest):
            seen.append(seconds["step_seconds"])

    outstanding = PendingSteps(Seen(), most)
    for log in range(3):
        for step in range(6):
            begin, now[0] = now[0], now[0] + 1.0
            outstanding.add(PendingStep(6 * log + step, at, {}, {}, tf.constant([True, True]), begin, 0.0, 0.0))
        outstanding.settle()
        now[0] += 5.0
        assert sum(seen[6 * log :]) == 6.0
