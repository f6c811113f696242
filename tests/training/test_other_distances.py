"""A run that resumes with other features or samples: distances on different scales do not compete.

Modules: training.changes.
"""

import json

import pytest

from hvdgan.train import main
from pooled import pooled

FLAGS = "--recipe tiny:Tiny --image-size 8 --global-batch-size 8 --steps 8 --eval-every 2 --checkpoint-every 2".split()
FLAGS += ["--keep", "0", "--eval-features", pooled(), "--best-metric", "eval/frechet"]
LINE = "samples are compared in another way than before"


@pytest.fixture
def resumed(tmp_path):
    """A function that trains to a step and returns the best one; no distance is less than the one saved at step 2."""

    def train(last, samples):
        flags = [*FLAGS, "--max-steps", str(last), "--eval-samples", str(samples), "--run-dir", str(tmp_path)]
        assert main(flags) == 0
        return json.loads((tmp_path / "checkpoints" / f"step-{last:08}" / "manifest.json").read_text())["best"]["step"]

    assert train(2, 60) == 2
    path = tmp_path / "checkpoints" / "step-00000002" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["progress"]["best"]["value"] = -1.0
    path.write_text(json.dumps(manifest))
    return train


@pytest.mark.parametrize(("samples", "best"), [(60, 2), (70, 4)])
def test_the_best_checkpoint_is_sought_anew_if_the_distance_is_another_one(resumed, tmp_path, samples, best):
    assert resumed(4, samples) == best
    said = (tmp_path / "log.txt").read_text()
    assert said.count(LINE) == (samples != 60)
    assert ("(real_samples, samples)" in said and "the best checkpoint will be sought anew" in said) == (samples != 60)
    resumed(6, samples)
    assert (tmp_path / "log.txt").read_text().count(LINE) == (samples != 60)
