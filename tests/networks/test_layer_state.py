"""State that layers keep beside their weights: averaged over the ranks, saved exactly, or refused.

Modules: training.state.
"""

import sys

import numpy as np
import pytest
from keras import layers
from safetensors.numpy import load_file

from building import tiny_run, values_of
from hvdgan.checkpoints import checkpoint
from hvdgan.cli.errors import UserError
from hvdgan.networks.layer_state import other_state_of, statistics_of
from hvdgan.recipe import DataSpec
from hvdgan.training import restore
from hvdgan.training.command import Resume
from hvdgan.training.saving import snapshot
from launching import CONTROLLERS, launcher, run, train
from small import small
from tiny import (
    Counting,
    CountingBright,
    Pooled,
    PooledAlike,
    PooledIfBright,
    PooledNoise,
    Stateful,
    TinyOptions,
)

SIZE = ("--image-size", "8", "--global-batch-size", "16", "--norm", "batch", "--run-dir", "run")
CONTROLLER = CONTROLLERS[-1]


def state_of(folder, step):
    return load_file(folder / f"run/checkpoints/step-{step:08d}/state.safetensors")


def test_state_that_is_the_same_on_all_ranks_is_saved_exactly_and_resumes_with_any_number_of_them(tmp_path):
    for steps, ranks in ((2, 2), (4, 1), (5, 2)):
        train(tmp_path, "--recipe", "tiny:Counting", *SIZE, "--steps", str(steps), ranks=ranks, controller=CONTROLLER)
        saved = state_of(tmp_path, steps)
        calls = 2 * steps  # real and fake, by the update that owns the network
        for kind in ("whole", "wide"):
            count = saved[f"networks/discriminator/judging/keeps/{kind}"]
            assert count == 2**40 + 1 + calls and count.dtype == {"whole": np.int64, "wide": np.float64}[kind]
        assert saved["networks/discriminator/judging/keeps/odd"].dtype == bool
        if ranks == 2:  # BatchNorm's statistics and their averages, and nothing of the counter
            assert saved["ranks/statistics"].shape == (2, 3 * 32)


def test_state_that_depends_on_samples_is_refused_by_a_dry_run_on_one_rank(tmp_path):
    command = [sys.executable, "-m", "hvdgan.train", "--recipe", "tiny:Pooled", *SIZE, "--dry-run"]
    done = run(command, tmp_path, forked=True)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.splitlines()[-1].startswith("hvdgan: recipe Pooled, stage adversarial, update judge (tiny.py, l")
    assert "network discriminator, layer keeps: judging/keeps/images depends on the rank's own samples" in done.stderr
    assert 'aggregation="mean"' in done.stderr


SETTINGS = [{}, {"accumulate": 2}, {"jit": True}]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("recipe", [Pooled, PooledIfBright, PooledNoise, CountingBright])
def test_it_is_refused_wherever_the_samples_go(recipe, settings):
    with pytest.raises(
        UserError, match=r"update judge \(tiny.py, .* judging/keeps/\w+ depends on the rank's own sampl"
    ):
        tiny_run(recipe, **settings)


@pytest.mark.parametrize("settings", SETTINGS)
def test_state_that_depends_on_the_step_and_the_weights_alone_is_allowed(settings):
    tiny_run(PooledAlike, **settings)


def test_other_state_that_differs_between_the_ranks_is_refused_by_name_after_the_first_step(tmp_path):
    command = [*launcher(2, CONTROLLER), sys.executable, "-m", "hvdgan.train", "--recipe", "tiny:OfRank", *SIZE]
    done = run(command, tmp_path, forked=True)
    assert done.returncode == 1, done.stdout + done.stderr
    said = [line for line in done.stderr.splitlines() if "differs between the ranks" in line]
    assert len(said) >= 1
    for line in said:
        assert "step 1, stage adversarial: network discriminator, layer keeps: judging/keeps/images differs" in line
        assert 'aggregation="mean"' in line
    assert "<stderr>:Traceback" not in done.stderr  # of a rank; over Gloo horovodrun prints its own
    assert not list(tmp_path.glob("run/checkpoints/step-*"))


class Noting(layers.Layer):
    """Says of one of its variables that it is a mean over samples, and has weights that are not trained."""

    def build(self, shape):
        self.mean = self.add_weight(shape[1:], "zeros", trainable=False, aggregation="mean", name="mean")
        self.count = self.add_weight((), "zeros", dtype="int32", trainable=False, aggregation="mean", name="count")
        self.frozen = layers.Dense(3, name="frozen")
        self.frozen.build((None, 2))
        self.frozen.trainable = False

    def call(self, inputs):
        return inputs


def test_which_variables_are_statistics():
    recipe = type("WithNoting", (Stateful,), {"layer": Noting})
    network = tiny_run(recipe, TinyOptions(norm="batch")).state.networks["discriminator"]
    assert [variable.path.split("/")[-1] for variable in statistics_of(network)] == [
        "mean",
        "moving_mean",
        "moving_variance",
    ]
    assert [variable.path for _, variable in other_state_of(network)] == ["judging/keeps/count"]


def test_statistics_of_other_variables_give_way_to_their_means():
    state = tiny_run(options=TinyOptions(norm="batch")).state
    columns = len(state.statistics.read())
    assert state.statistics.select(np.zeros((2, columns))).shape == (2, columns)
    assert state.statistics.select(np.zeros((2, columns + 1))) is None


@pytest.mark.parametrize("name", ["sngan", "stylegan2"])
def test_those_of_hvdgans_own_layers_are_averaged_as_they_were(name):
    recipe, options = small(name)
    networks = recipe(options, DataSpec((32, 32, 1), 100)).networks()
    assert any(statistics_of(network) for network in networks.values())
    assert not [pair for network in networks.values() for pair in other_state_of(network)]


@pytest.mark.parametrize("size", [2, 3])
def test_a_checkpoint_that_has_other_state_among_the_statistics_of_each_rank_resumes(tmp_path, size):
    """As they were written before only statistics were averaged: all that is floating-point and not trained."""
    made = tiny_run(Counting, TinyOptions(norm="batch"), run_dir=tmp_path)
    state, before = made.state, []
    for name, network in state.networks.items():
        floats = [v for v in network.variables if "float" in v.dtype]
        before += [(v.path, v) for v in network.non_trainable_variables if "float" in v.dtype]
        before += [(v.path, e) for v, e in zip(floats, state.ema.get(name, []), strict=False) if not v.trainable]
    columns = np.concatenate([np.full(int(np.prod(v.shape)), "wide" in path) for path, v in before])
    mine = np.concatenate([np.ravel(v.numpy()).astype(np.float32) for _, v in before])
    everyones = np.stack([mine + rank for rank in range(size)])
    taken = snapshot(made, 3, 48, "id", state.statistics.read()[None], {})
    taken.values["ranks/statistics"] = everyones
    checkpoint.write(made.checkpoints, taken)
    again = tiny_run(Counting, TinyOptions(norm="batch"), run_dir=tmp_path)
    found = restore.from_disk(again, Resume())
    found.lock.close()
    assert columns.sum() == 1 and not found.remarks
    np.testing.assert_array_equal(found.statistics, everyones[:, ~columns])
    for name, value in values_of(made).items():
        assert values_of(again)[name].tobytes() == value.tobytes(), name
