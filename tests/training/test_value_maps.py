"""A run that resumes on data which have changed in place: the statistics of `standard` are those of the checkpoint."""

import json

import numpy as np
import pytest

from building import tiny_run
from hvdgan.checkpoints import checkpoint
from hvdgan.checkpoints.files import newest
from hvdgan.cli.data_config import ArrayConfig
from hvdgan.cli.errors import UserError
from hvdgan.training.building.command import Resume
from hvdgan.training.resuming import run_folder
from hvdgan.training.resuming.saving import snapshot


def built(folder):
    arrays = ArrayConfig(values="standard")
    return tiny_run(data=str(folder / "a.npy"), arrays=arrays, run_dir=folder / "run", holdout=0.0)


def resumed(folder, *allowed):
    """The lines that a resume logs."""
    found = run_folder.take(built(folder), Resume(allow_changed=allowed))
    found.lock.close()
    return found.remarks


@pytest.fixture
def fields(tmp_path):
    """200 fields, and a checkpoint of a run on them."""
    fields = np.random.default_rng(0).normal(0, 1, (200, 8, 8, 1)).astype(np.float32)
    np.save(tmp_path / "a.npy", fields)
    run = built(tmp_path)
    checkpoint.write(run.checkpoints, snapshot(run, 3, 48, "id", run.state.statistics.read()[None], {}))
    return fields


def test_a_sample_that_the_fingerprint_does_not_cover_has_changed(fields, tmp_path):
    before = built(tmp_path)
    fields[1] += 0.5
    np.save(tmp_path / "a.npy", fields)
    assert built(tmp_path).source.fingerprint == before.source.fingerprint
    mean = fields.mean(dtype=np.float64)
    with pytest.raises(UserError) as refused:
        resumed(tmp_path)
    (was,) = before.recipe.data.values.images.chains[0][0].means
    said = str(refused.value)
    assert "another value map of the images: channel 0 had mean" in said and "--allow-changed data" in said
    assert f"mean {was:.9g} and" in said and f"mean {mean:.9g} and" in said and "\n" not in said
    lines = [line for line in resumed(tmp_path, "data") if "value map of the images" in line]
    assert len(lines) == 1 and f"mean {mean:.9g} and" in lines[0]


def test_the_same_data_are_resumed_also_if_the_last_bits_of_a_sum_differ(fields, tmp_path):
    assert not resumed(tmp_path)
    path = newest(tmp_path / "run" / "checkpoints") / "manifest.json"
    manifest = json.loads(path.read_text())
    ((_, [means, deviations]),) = manifest["data"]["spec"]["values"]["images"]["chains"][0]
    means[0] += 1e-9 * deviations[0]
    path.write_text(json.dumps(manifest))
    assert not resumed(tmp_path)
    means[0] += 1e-5 * deviations[0]
    path.write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="another value map"):
        resumed(tmp_path)


def test_a_map_whose_flag_is_allowed_may_be_another_one(fields, tmp_path):
    arrays = ArrayConfig(values="range:-4,4")
    run = tiny_run(data=str(tmp_path / "a.npy"), arrays=arrays, run_dir=tmp_path / "run", holdout=0.0)
    found = run_folder.take(run, Resume(allow_changed=("values",)))
    found.lock.close()
    assert found.step == 3
