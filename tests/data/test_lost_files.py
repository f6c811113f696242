"""Data that disappears and disks that fill up during a run: one line, exit code 1, the last checkpoint whole."""

import re
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest

from arrays_on_disk import arrays, hdf5, nameless_zarr, netcdf, npy, zarr
from hvdgan.checkpoints import files
from hvdgan.cli.errors import RunError
from launching import ROOT, environment, launcher
from packed import write_images

FLAGS = """--recipe tiny:Tiny --image-size 8 --fit crop --global-batch-size 4
--checkpoint-every 20 --sample-every 0 --steps 100000"""


def assert_whole(run_dir):
    newest = files.newest(run_dir / "checkpoints")
    assert newest is not None and files.damaged(newest, files.read_manifest(newest)) == []


@pytest.mark.long
def test_a_folder_deleted_under_two_ranks(tmp_path):
    data = write_images(tmp_path / "data")
    command = [*launcher(2), sys.executable, "-m", "hvdgan.train", *FLAGS.split(), "--data", "data", "--run-dir", "run"]
    with (tmp_path / "out.txt").open("w") as out:
        process = subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + 120
        while not list((tmp_path / "run" / "checkpoints").glob("step-*")):
            assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "out.txt").read_text()
            time.sleep(0.1)
        shutil.rmtree(data)
        assert process.wait(timeout=120) == 1
    finally:
        process.kill()
        process.wait()
    text = (tmp_path / "out.txt").read_text()
    assert re.search(
        r"hvdgan: (rank \d: )?--data data: class .* was listed by rank 0, and is gone, or .*: No such file",
        text,
    )
    assert f'File "{ROOT}/hvdgan' not in text  # horovodrun's own traceback is not ours to mend
    assert_whole(tmp_path / "run")


@pytest.mark.parametrize("write", [npy, hdf5, netcdf, zarr, nameless_zarr])
def test_an_array_that_is_written_again_in_place_ends_the_run(tmp_path, write):
    """Otherwise the run would train on the new numbers without a word."""
    fields = np.random.default_rng(0).random((20, 4, 4, 2), np.float32)
    source = arrays(write(tmp_path, fields))
    np.testing.assert_array_equal(source.fetch(3), fields[3])
    (tmp_path / "new").mkdir()
    write(tmp_path / "new", 1 - fields)
    for path in (tmp_path / "new").rglob("*"):
        if path.is_file():
            shutil.copyfile(path, tmp_path / path.relative_to(tmp_path / "new"))
    with pytest.raises(RunError, match=r"/a\..* cannot be read: the file has changed since the run began"):
        source.fetch(3)
