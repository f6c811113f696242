"""Arrays that change during a run end it in one line; test_unreadable.py has pictures that disappear."""

import shutil

import numpy as np
import pytest

from arrays_on_disk import arrays, hdf5, nameless_zarr, netcdf, npy, zarr
from hvdgan.cli.errors import RunError


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
