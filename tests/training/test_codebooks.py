"""Codebooks that are averages of the whole batch: one rank and several keep the same, and a resume has its bits.
Modules: distributed.joint_means"""

import sys

import numpy as np
import pytest

import codebooks
from building import data_of, stage_step, tiny_run
from hvdgan.distributed.ranks import Ranks
from hvdgan.recipe import Stage, State, Update
from launching import CONTROLLERS, ROOT, launcher, run, train
from saved import tensors
from tiny import Tiny


@pytest.fixture(scope="module")
def alone():
    return codebooks.trained(Ranks())


@pytest.mark.long
@pytest.mark.timeout(700)
@pytest.mark.parametrize("size", [2, 3])
def test_ranks_keep_the_codebooks_of_one_rank(tmp_path, alone, size):
    """A layer that learns its codes, one that averages them, and state of the recipe; slices are of unequal sizes."""
    script = [sys.executable, ROOT / "tests" / "support" / "codebooks.py", tmp_path / "found.npz"]
    done = run([*launcher(size, CONTROLLERS[-1]), *script], cwd=tmp_path, seconds=600, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    found = np.load(tmp_path / "found.npz")
    first = codebooks.Coded.state(None)["codes"].initial
    assert np.abs(alone["state/codes"] - first).max(axis=1).min() > 0.01  # also those that no sample has chosen
    assert alone.keys() == {*found} and len({*alone["use"]}) > 3
    for name, value in alone.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.long
def test_two_ranks_that_resume_have_the_bits_of_an_uninterrupted_run(tmp_path):
    words = "--recipe codebooks:Coded --image-size 8 --global-batch-size 6 --sample-every 0 --run-dir run --steps 5"
    for folder, stops in (("whole", (5,)), ("cut", (2, 5))):
        (tmp_path / folder).mkdir()
        for stop in stops:
            more = ["--check-ranks-every", "1", "--max-steps", str(stop)]
            train(tmp_path / folder, *words.split(), *more, ranks=2, controller=CONTROLLERS[-1])
    whole, cut = (tensors(tmp_path / folder / "run", 5) for folder in ("whole", "cut"))
    assert whole.keys() == cut.keys() >= {"state/codes", "networks/averaged/averaged/book/codes"}
    assert not any(name.startswith("ranks/") for name in whole)  # all ranks have the same, saved once
    assert all(whole[name].tobytes() == cut[name].tobytes() for name in whole)


@pytest.mark.parametrize(("together", "counted"), [(False, 11.0), (True, 10.0)])
def test_a_later_update_sees_the_state_of_an_earlier_one_unless_both_are_together(together, counted):
    class Counting(Tiny):
        def state(self):
            return {"count": State(0.0)}

        def stages(self):
            updates = [Update("judge", ["discriminator"], self.judge), Update("fool", ["generator"], self.fool)]
            return [Stage("both", 1, updates, together=together)]

        def judge(self, nets, batch):
            return *super().judge(nets, batch), {"count": batch.state.count + 1}

        def fool(self, nets, batch):
            return *super().fool(nets, batch), {"count": batch.state.count + 10}

    run = tiny_run(Counting)
    stage_step(run)(0, 0, data_of(run))
    assert float(run.state.declared_state.shared()["state/count"].numpy()) == counted
