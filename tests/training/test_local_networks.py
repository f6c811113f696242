"""Networks that each rank trains for itself: its own gradients, all of them in a checkpoint, and an exact resume."""

import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file

from launching import train


def trained(folder, steps, ranks=2, recipe="Local"):
    """The tensors after training to a step."""
    folder.mkdir(exist_ok=True)
    words = f"--recipe stateful:{recipe} --image-size 8 --global-batch-size 6 --sample-every 0 --norm batch"
    words += f" --check-ranks-every 1 --checkpoint-every 1 --keep 0 --max-steps {steps} --run-dir run"
    train(folder, *words.split(), ranks=ranks)
    return state(folder, steps)


def state(folder, step):
    return load_file(folder / f"run/checkpoints/step-{step:08d}/state.safetensors")


def kernels(tensors):
    """The first kernel of the discriminator on all ranks, (ranks, 64, 16), and as the file has it of rank 0."""
    (name,) = (n for n in tensors if n.startswith("local/networks/") and tensors[n].shape[1:] == (64, 16))
    return tensors[name], tensors[name.removeprefix("local/")]


@pytest.fixture(scope="module")
def cut(tmp_path_factory):
    """A run of two ranks that has stopped after its second step, when the discriminators are trained."""
    folder = tmp_path_factory.mktemp("cut")
    trained(folder, 2)
    return folder


def test_each_rank_follows_the_gradient_of_its_own_samples(cut, tmp_path):
    """With SGD, the mean of the ranks' first steps is the step of the reduced gradient."""
    everyones, of_root = kernels(state(cut, 1))
    reduced = trained(tmp_path, 1, recipe="Reduced")
    (name,) = (n for n in reduced if n.startswith("networks/discriminator") and reduced[n].shape == (64, 16))
    assert len(everyones) == 2 and not np.allclose(*everyones, atol=1e-6)
    np.testing.assert_array_equal(everyones[0], of_root)
    np.testing.assert_allclose(everyones.mean(axis=0), reduced[name], atol=1e-7)


def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one_and_another_number_of_ranks_takes_the_first(cut, tmp_path):
    one, two = (shutil.copytree(cut, tmp_path / name) for name in ("one", "two"))
    whole, resumed = trained(tmp_path / "whole", 4), trained(two, 4)
    assert whole.keys() == resumed.keys()
    assert all(whole[name].tobytes() == resumed[name].tobytes() for name in whole)
    before, _ = kernels(state(cut, 2))
    np.testing.assert_array_equal(kernels(trained(one, 4, ranks=1))[0], before[:1])
