"""Runs of every kind of file are resumed from their checkpoints on other numbers of ranks; the numbers stay exact.

Each kind of file has one type here. test_array_values.py reads every kind with every type, from the positions and with
the fingerprints that checkpoints hold.
"""

import json
import shutil
import sys

import numpy as np
import pytest

from arrays_on_disk import netcdf, netcdf3, zarr
from hvdgan.data.order import sample_indices
from hvdgan.train import main
from launching import CONTROLLERS, ROOT, launcher, run
from recording import FLAGS, STEPS, seen_by
from table_of_arrays import ALL, TYPES, axes_of, gzip_shards, numbers, shards, tfrecords

OWN_AXES = (netcdf, netcdf3, zarr, shards, gzip_shards)
SHAPE = (18, 3, 5, 2)
ROWS = [(write, names[(7 * place) % len(names)]) for place, (write, names) in enumerate(ALL)]
"""each kind of file with one of its types, and each type in some file"""


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """Runs of one rank that have stopped after their first step: flags and samples of each."""
    folder = tmp_path_factory.mktemp("stopped")
    (folder / "seen").mkdir()
    runs = {}
    for write, name in ROWS:
        array = numbers(name, SHAPE)
        (folder / write.__name__).mkdir()
        words = ["--data", write(folder / write.__name__, array)]
        if write is tfrecords:
            words += ["--tfrecord-shape", ",".join(map(str, SHAPE[1:])), "--tfrecord-dtype", name]
        if write not in OWN_AXES:
            words += ["--axes", axes_of(array)]
        words += ["--run-dir", str(folder / "runs" / write.__name__), *FLAGS]
        assert main([*words, "--max-steps", "1", "--seen", str(folder / "seen"), "--report", "never"]) == 0
        runs[write.__name__] = (words, array)
        first = array[order(0)].astype(np.float32)
        assert seen_by(folder / "seen", 0, 1).tobytes() == first.tobytes(), write.__name__
    return folder, runs


def test_each_type_is_in_some_file():
    assert {name for _, name in ROWS} == set(TYPES)


def order(step):
    return sample_indices(0, step * 6, 6, len(np.empty(SHAPE)))


@pytest.mark.parametrize("size", [2, 3])
def test_the_numbers_after_a_resume_on_other_ranks_are_those_of_the_array(stopped, tmp_path, size):
    """Half of the kinds on two ranks, and the other half on three."""
    folder, runs = stopped
    runs = {name: each for number, (name, each) in enumerate(runs.items()) if number % 2 == size - 2}
    shutil.copytree(folder / "runs", tmp_path / "runs")
    commands = []
    for name, (words, _) in runs.items():
        (tmp_path / "seen" / name).mkdir(parents=True)
        own = [word.replace(str(folder / "runs"), str(tmp_path / "runs")) for word in words]
        commands.append([*own, "--seen", str(tmp_path / "seen" / name), "--report", "never"])
    (tmp_path / "runs.json").write_text(json.dumps(commands))
    program = [sys.executable, ROOT / "tests" / "support" / "recording.py", tmp_path]
    done = run([*launcher(size, CONTROLLERS[0]), *program], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for name, (_, array) in runs.items():
        for step in range(1, STEPS):
            found = seen_by(tmp_path / "seen" / name, step, size)
            assert found.dtype == np.float32
            assert found.tobytes() == array[order(step)].astype(np.float32).tobytes(), (name, step)
