"""Runs of every kind of file are resumed from their checkpoints on other numbers of ranks; the numbers stay exact."""

import json
import shutil
import sys

import numpy as np
import pytest

from arrays_on_disk import (
    chunked_hdf5,
    gzip_hdf5,
    hdf5,
    lzf_hdf5,
    many_hdf5,
    nameless_zarr,
    nameless_zarr2,
    netcdf,
    netcdf3,
    npy,
    npy_folder,
    npz,
    packed_npz,
    zarr,
)
from hvdgan.data.order import sample_indices
from hvdgan.train import main
from launching import CONTROLLERS, ROOT, launcher, run
from recording import FLAGS, STEPS, seen_by
from table_of_arrays import axes_of, shards, tfrecords, zlib_shards

KINDS = [npy, npz, packed_npz, npy_folder, hdf5, gzip_hdf5, chunked_hdf5, lzf_hdf5, many_hdf5, netcdf, netcdf3, zarr]
KINDS += [nameless_zarr, nameless_zarr2, shards, zlib_shards, tfrecords]
TYPES = ["float32", "float64", "int16", "uint16", "float16", "int32", "uint8", "uint32", "int8"]
OWN_AXES = (netcdf, netcdf3, zarr, shards, zlib_shards)
SHAPE = (18, 3, 5, 2)


def type_of(number, write):
    """Another type from kind to kind; that of netCDF 3 is one that it has."""
    return "float64" if write is netcdf3 else TYPES[number % len(TYPES)]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """Runs of one rank that have stopped after their first step: flags and samples of each."""
    folder = tmp_path_factory.mktemp("stopped")
    (folder / "seen").mkdir()
    runs = {}
    for number, write in enumerate(KINDS):
        kind = np.dtype(type_of(number, write))
        array = (np.random.default_rng(number).standard_normal(SHAPE) * 100).astype(kind)
        (folder / write.__name__).mkdir()
        words = ["--data", write(folder / write.__name__, array)]
        if write is tfrecords:
            words += ["--tfrecord-shape", ",".join(map(str, SHAPE[1:])), "--tfrecord-dtype", kind.name]
        if write not in OWN_AXES:
            words += ["--axes", axes_of(array)]
        words += ["--run-dir", str(folder / "runs" / write.__name__), *FLAGS]
        assert main([*words, "--max-steps", "1", "--seen", str(folder / "seen"), "--report", "never"]) == 0
        runs[write.__name__] = (words, array)
        first = array[order(0)].astype(np.float32)
        assert seen_by(folder / "seen", 0, 1).tobytes() == first.tobytes(), write.__name__
    return folder, runs


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
