"""--gradient-groups: how many groups there are, and what they do to the bits of three ranks.

tests/parallel/test_groups.py looks for the groups in the graphs of two ranks.
"""

import sys

import numpy as np
import pytest

from hvdgan.checkpoints import files
from hvdgan.cli.errors import UserError
from hvdgan.distributed.bundling import Grouping
from hvdgan.train import main
from launching import run, train

FLAGS = "--recipe tiny:Wide --image-size 8 --global-batch-size 12 --steps 4 --log-every 2 --sample-every 0".split()


@pytest.mark.parametrize(
    ("wanted", "deterministic", "size", "on_gpu", "bundles", "expected"),
    [
        ("auto", False, 2, False, 5, None),
        ("auto", False, 3, False, 5, 1),
        ("auto", False, 8, False, 1, 1),
        ("auto", False, 2, True, 5, None),
        ("auto", False, 3, True, 5, None),
        ("auto", False, 8, True, 5, None),
        (1, False, 2, False, 5, 1),
        (1, False, 8, True, 5, 1),
        (2, False, 2, False, 5, 2),
        (2, False, 3, True, 5, 2),
        (5, False, 3, False, 5, 5),
        (6, False, 3, False, 5, 5),
        (99, False, 3, True, 1, 1),
        ("auto", True, 2, False, 5, 1),
        ("auto", True, 8, True, 5, 1),
        (1, True, 8, True, 5, 1),
    ],
)
def test_the_number_of_groups(wanted, deterministic, size, on_gpu, bundles, expected):
    assert Grouping(wanted, deterministic).groups(size, bundles, on_gpu=on_gpu) == expected


def test_several_groups_and_the_same_bits_are_refused(tmp_path):
    """In a process of its own, because TensorFlow's determinism stays switched on."""
    with pytest.raises(UserError, match=r"--gradient-groups 2: --deterministic needs one group"):
        Grouping(2, deterministic=True)
    words = "--recipe tiny:Tiny --image-size 8 --run-dir run --gradient-groups 2 --deterministic".split()
    done = run([sys.executable, "-m", "hvdgan.train", *words], tmp_path, forked=True)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("hvdgan: --gradient-groups 2: --deterministic needs one group") and "leave out one" in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("number", ["0", "-1", "1.5", "two"])
def test_a_number_below_one_and_other_words_are_refused(number, tmp_path, capsys):
    assert main(["--recipe", "tiny:Tiny", f"--gradient-groups={number}", "--run-dir", str(tmp_path / "run")]) == 2
    assert f'"{number}" is not a whole number above 0, nor auto' in capsys.readouterr().err


def weights(folder, *flags):
    """All tensors after training on three ranks."""
    train(folder, *FLAGS, "--run-dir", "run", *flags, ranks=3)
    return dict(files.read_tensors(files.newest(folder / "run" / "checkpoints")))


def test_three_ranks_repeat_their_bits_with_one_group_and_train_the_same_with_two(tmp_path):
    """auto is one group on CPUs."""
    found = {}
    for groups in ("1", "auto", "2"):
        (tmp_path / groups).mkdir()
        found[groups] = weights(tmp_path / groups, "--gradient-groups", groups)
    for name, value in found["1"].items():
        assert value.tobytes() == found["auto"][name].tobytes(), name
        if name.startswith("networks/"):
            assert np.linalg.norm(found["2"][name] - value) <= 1e-4 * np.linalg.norm(value) + 1e-6, name
