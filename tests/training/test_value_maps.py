"""The value maps of a run that resumes are those of its checkpoint, with their statistics.

Modules: training.changes.
"""

import numpy as np
import pytest

from building import tiny_run
from hvdgan.checkpoints import checkpoint
from hvdgan.cli.data_config import ArrayConfig
from hvdgan.cli.errors import UserError
from hvdgan.data import statistics
from hvdgan.train import main
from hvdgan.training import restore
from hvdgan.training.command import Resume
from hvdgan.training.saving import snapshot


def built(folder):
    arrays = ArrayConfig(values="standard")
    return tiny_run(data=str(folder / "a.npy"), arrays=arrays, run_dir=folder / "run", holdout=0.0)


def resumed(folder, *allowed):
    """The lines that a resume logs."""
    found = restore.from_disk(built(folder), Resume(allow_changed=allowed))
    found.lock.close()
    return found.remarks


@pytest.fixture
def fields(tmp_path):
    """200 fields, and a checkpoint of a run on them."""
    fields = np.random.default_rng(0).normal(0, 1, (200, 8, 8, 1)).astype(np.float32)
    np.save(tmp_path / "a.npy", fields)
    run = built(tmp_path)
    checkpoint.write(run.checkpoints, snapshot(run, 3, 48, "id", (run.state.statistics.read()[None], {}), {}))
    return fields


def test_a_resumed_run_takes_the_statistics_of_its_checkpoint(fields, tmp_path, monkeypatch):
    """The data may be large: a start reads 64 of them for the fingerprint, and not all for their mean."""
    flags = f"--recipe tiny:Tiny --data {tmp_path}/a.npy --values standard --global-batch-size 4 --report never".split()
    assert main([*flags, "--steps", "1", "--run-dir", str(tmp_path / "other")]) == 0
    monkeypatch.setattr(statistics, "moments_of", lambda numbers: pytest.fail("they are computed again"))
    assert main([*flags, "--steps", "2", "--run-dir", str(tmp_path / "other")]) == 0


def test_data_with_other_statistics_are_refused_unless_they_are_allowed(fields, tmp_path):
    """Also where the one sample that differs is none of the 64 of the fingerprint."""
    (was,) = built(tmp_path).recipe.data.values.images.chains[0][0].means
    fields[1] += 100
    np.save(tmp_path / "a.npy", fields)
    with pytest.raises(UserError, match="another value map of the images: .*--allow-changed data"):
        resumed(tmp_path)
    (line,) = (line for line in resumed(tmp_path, "data") if "value map of the images" in line)
    assert f"mean {was:.6g}" in line and f"mean {fields.mean(dtype=np.float64):.6g}" in line
