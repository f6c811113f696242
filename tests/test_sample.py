"""The command hvdgan.sample, on runs trained here in a moment."""

import numpy as np
import pytest
from PIL import Image

from hvdgan import sample
from hvdgan.train import main as train


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of two steps: dcgan, completion, and a conditional recipe."""
    folder = tmp_path_factory.mktemp("runs")
    short = "--global-batch-size 4 --max-steps 2 --nf 2".split()
    for recipe in ("dcgan", "completion"):
        assert train(["--recipe", recipe, "--run-dir", str(folder / recipe), *short]) == 0
    return folder


def draw(run, out, *arguments):
    """The pictures of a call that must succeed, uint8."""
    assert sample.main([str(run), "--separate", "--out", str(out), *map(str, arguments)]) == 0
    return np.stack([np.asarray(Image.open(path)) for path in sorted(out.iterdir())])


def test_x(runs, tmp_path, capsys):
    assert draw(runs / "dcgan", tmp_path / "a", "--num", 3).shape == (3, 32, 32)
    print(capsys.readouterr().out)
