"""The host never waits for the newest step between two logs, and the results are those of a host that does.
Modules: training.loop, training.step"""

import dataclasses
import threading

import keras
import pytest
import tensorflow as tf

import saved
from building import changed, data_of, stage_step, tiny_run, values_of
from hvdgan.networks import cpu_or_gpu
from hvdgan.recipe.stages import Stage, Update
from hvdgan.training.step import StageStep
from tiny import Exploding, Tiny, TinyOptions


def recorded(monkeypatch):
    """The thread and the number of begun steps of each reading from now on, and a 1 for each step that begins."""
    read, begun, kind, begin = [], [], type(tf.constant(0.0)), StageStep.__call__
    find = kind._numpy_internal  # not public; without it the tests that record fail  # noqa: SLF001

    def found(tensor):
        read.append((threading.current_thread().name, len(begun)))
        return find(tensor)

    def counted(step, *arguments):
        begun.append(1)
        return begin(step, *arguments)

    monkeypatch.setattr(kind, "_numpy_internal", found)
    monkeypatch.setattr(StageStep, "__call__", counted)
    return read, begun


class Sometimes(Tiny):
    """A generator that moves in every other step, and a judge whose gradients are clipped."""

    def stages(self):
        judge = Update("judge", owns=["discriminator"], loss=self.judge, clip_norm=0.1)
        fool = Update("fool", owns=["generator"], loss=self.fool, only_if=lambda metrics: metrics["odd"] > 0.5)
        return [Stage("adversarial", self.options.steps, [judge, fool])]

    def fool(self, nets, batch):
        return super().fool(nets, batch)[0], {"odd": tf.cast(batch.random.step % 2, tf.float32)}


@pytest.mark.parametrize("more", [["--precision", "mixed_float16"], ["--recipe", "test_outstanding:Sometimes"]])
def test_a_run_reads_nothing_of_its_device_between_two_logs_and_other_threads_once_per_step(
    tmp_path, monkeypatch, more
):
    read, begun = recorded(monkeypatch)
    more = [*"--steps 16 --log-every 8 --sample-every 0 --report never".split(), *more]
    with cpu_or_gpu.computing_as(dataclasses.replace(cpu_or_gpu.CPU, branches=False, steps_behind=4)):
        assert saved.train(tmp_path, *more) == 0
    assert {at for thread, at in read if thread == threading.main_thread().name} == {0, 8, 16}
    assert sum(thread.startswith("hvdgan-results") for thread, _ in read) == len(begun) == 16


class Clipped(Exploding):
    """Weights that are clipped after each update, and an optimizer that has no kernel of hvdgan's."""

    def stages(self):
        (stage,) = super().stages()
        updates = [dataclasses.replace(each, clip_weights=0.05) for each in stage.updates]
        return [dataclasses.replace(stage, updates=updates)]

    def optimizers(self):
        return {**super().optimizers(), "discriminator": keras.optimizers.RMSprop(1e-3)}


@pytest.mark.long
@pytest.mark.parametrize("recipe", [Exploding, Clipped])
def test_selection_gives_the_bits_of_a_branch(recipe):
    """Also in the third step, whose judge is not finite."""

    def trained(branches):
        run = tiny_run(recipe, TinyOptions(norm="batch"), precision="mixed_float16", accumulate=2)
        with cpu_or_gpu.computing_as(dataclasses.replace(cpu_or_gpu.CPU, branches=branches)):
            step = stage_step(run, ranks=run.ranks)  # which is not traced yet
            results = [step(number, number, data_of(run)) for number in range(4)]
        verdicts = [finite.numpy().tolist() for _, finite in results]
        metrics = [{name: float(value) for name, value in each.items()} for each, _ in results]
        kinds = {each.type for traced in step.traced.values() for each in traced.graph.get_operations()}
        assert bool(kinds & {"If", "StatelessIf"}) == branches
        return values_of(run), verdicts, str(metrics)

    by_branch, by_selection = trained(True), trained(False)
    assert not changed(by_branch[0], by_selection[0])
    assert by_branch[1:] == by_selection[1:]
    assert not by_branch[1][2][0]


def test_a_run_whose_steps_wait_has_the_bits_of_one_whose_steps_do_not(tmp_path):
    """Through the ends of three stages, samples, evaluations, checkpoints and a resume in the middle of a stage."""
    flags = "--recipe tiny:Staged --image-size 8 --global-batch-size 8 --steps 8 --log-every 5".split()
    flags += "--sample-every 3 --checkpoint-every 6 --eval-every 7 --eval-samples 16".split()
    assert saved.train(tmp_path / "plain", flags=flags) == 0
    with cpu_or_gpu.computing_as(dataclasses.replace(cpu_or_gpu.CPU, branches=False, steps_behind=4)):
        for most in ("13", "24"):
            assert saved.train(tmp_path / "waiting", "--max-steps", most, flags=flags) == 0
    for step in (16, 18, 24):
        assert saved.state(tmp_path / "waiting", step) == saved.state(tmp_path / "plain", step), step
    plain, waiting = (saved.records(tmp_path / name) for name in ("plain", "waiting"))
    assert [each["step"] for each in plain if "eval/histogram" in each] == [7, 14, 21, 24]
    for step in (5, 7, 10, 14, 20, 21, 24):
        figures = [
            [{name: each[name] for name in each if "/" in name} for each in lines if each["step"] == step]
            for lines in (plain, waiting)
        ]
        assert figures[0] and figures[0] == figures[1], step
