"""Networks that each rank trains for itself: its own gradients, all of them in a checkpoint, and an exact resume."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from building import tiny_run
from hvdgan.recipe import Stage, Update, UserError
from launching import train
from tiny import Tiny


def trained(folder, *launches, recipe="Local", norm="none"):
    """The tensors of the last checkpoint after launches, each a pair of ranks and steps."""
    folder.mkdir(exist_ok=True)
    for ranks, steps in launches:
        words = f"--recipe stateful:{recipe} --image-size 8 --global-batch-size 6 --sample-every 0 --norm {norm}"
        words += f" --check-ranks-every 1 --max-steps {steps} --run-dir run"
        train(folder, *words.split(), ranks=ranks)
    return load_file(folder / f"run/checkpoints/step-{steps:08d}/state.safetensors")


def kernels(tensors):
    """The first kernel of the discriminator on all ranks, (ranks, 64, 16), and as the file has it of rank 0."""
    (name,) = (n for n in tensors if n.startswith("local/networks/") and tensors[n].shape[1:] == (64, 16))
    return tensors[name], tensors[name.removeprefix("local/")]


def test_each_rank_follows_the_gradient_of_its_own_samples(tmp_path):
    """With SGD, the mean of the ranks' first steps is the step of the reduced gradient."""
    everyones, of_root = kernels(trained(tmp_path / "local", (2, 1)))
    reduced = trained(tmp_path / "reduced", (2, 1), recipe="Reduced")
    name = next(
        name for name in reduced if name.startswith("networks/discriminator") and reduced[name].shape == (64, 16)
    )
    assert len(everyones) == 2 and not np.allclose(*everyones, atol=1e-6)
    np.testing.assert_array_equal(everyones[0], of_root)
    np.testing.assert_allclose(everyones.mean(axis=0), reduced[name], atol=1e-7)


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(tmp_path, norm):
    whole, cut = trained(tmp_path / "a", (2, 4), norm=norm), trained(tmp_path / "b", (2, 1), (2, 4), norm=norm)
    assert whole.keys() == cut.keys() and all(whole[name].tobytes() == cut[name].tobytes() for name in whole)


@pytest.mark.parametrize(("ranks", "rows"), [(3, [0, 1, 0]), (1, [0])])
def test_another_number_of_ranks_takes_the_networks_in_turn(tmp_path, ranks, rows):
    before, _ = kernels(trained(tmp_path, (2, 2)))
    after, _ = kernels(trained(tmp_path, (2, 2), (ranks, 4)))
    np.testing.assert_array_equal(after, before[rows])


def test_a_network_is_reduced_in_all_updates_or_in_none():
    class Mixed(Tiny):
        def stages(self):
            judges = [Update(f"judge{n}", ["discriminator"], self.judge, reduce=bool(n)) for n in range(2)]
            return [Stage("one", 1, [*judges, Update("fool", ["generator"], self.fool)])]

    with pytest.raises(UserError, match="update judge1: owns discriminator, which an update with reduce=False owns"):
        tiny_run(Mixed)


def test_a_loss_that_is_not_finite_on_one_rank_moves_no_rank(tmp_path):
    before = kernels(trained(tmp_path / "one", (2, 1), recipe="BrokenOnOne"))[0]
    np.testing.assert_array_equal(kernels(trained(tmp_path / "two", (2, 2), recipe="BrokenOnOne"))[0], before)
