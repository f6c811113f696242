"""A run reads HDF5 that is compressed by Blosc, a plugin, although TensorFlow switches plugins off.
Modules: data.hdf5_files"""

import sys

import pytest

from launching import run

MAKER = """
import h5py, hdf5plugin, numpy

with h5py.File("blosc.h5", "w") as file:
    file.create_dataset("x", data=numpy.random.default_rng(0).random((12, 32, 32, 1), "f4"), **hdf5plugin.Blosc())
"""
TRAIN = "-m hvdgan.train --recipe dcgan --nf 2 --data blosc.h5:x --steps 1 --global-batch-size 4 --report never".split()


@pytest.mark.long
def test_blosc_is_read_by_its_plugin_or_named(tmp_path):
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--target", "plugins", "hdf5plugin"]
    assert run(install, tmp_path).returncode == 0
    assert run([sys.executable, "-c", MAKER], tmp_path, PYTHONPATH="plugins").returncode == 0
    without = run([sys.executable, *TRAIN], tmp_path)
    assert without.returncode == 2 and "needs the HDF5 filter blosc (32001); pip install hdf5plugin" in without.stderr
    for number, settings in enumerate(
        ({"PYTHONPATH": "plugins"}, {"HDF5_PLUGIN_PATH": f"{tmp_path}/plugins/hdf5plugin/plugins"})
    ):
        done = run([sys.executable, *TRAIN, "--run-dir", f"run{number}"], tmp_path, **settings)
        assert done.returncode == 0, done.stderr
