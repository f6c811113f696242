"""Every number of an array arrives as it is, from every kind of file, on any number of ranks, before and after resume.

Modules: data.axes, data.arrays, data.kinds.
"""

import json
import math
import sys

import numpy as np
import pytest

from arrays_on_disk import arrays, handed, netcdf, netcdf3, seen, zarr
from hvdgan.cli.shared_errors import ALONE
from launching import CONTROLLERS, ROOT, launcher, run
from reading import batches_of
from table_of_arrays import (
    ALL,
    KINDS,
    axes_of,
    gzip_shards,
    is_exact,
    numbers,
    opened,
    shards,
    slices,
    tfrecords,
)

ROWS = [(write, name) for write, names in KINDS for name in names]
IDS = [f"{write.__name__} {name}" for write, name in ROWS]


def read(source, rank, size, position, count):
    """Some batches of one rank: samples and their numbers."""
    with batches_of(source, global_batch_size=6, rank=rank, size=size, position=position) as batches:
        found = [next(batches) for _ in range(count)]
    return [(each["images"].numpy(), each["index"].numpy()) for each in found]


@pytest.mark.parametrize(("write", "name"), ROWS, ids=IDS)
def test_numbers_are_those_of_the_array(tmp_path, write, name):
    array = numbers(name)
    source = seen(arrays(write(tmp_path, array)))
    expected = handed(array)
    assert len(source) == 18 and source.record_shape == (3, 5, 2) and source.dtype == expected.dtype
    alone = read(source, 0, 1, 0, 3)
    for images, index in alone:
        assert images.dtype == expected.dtype and images.tobytes() == np.ascontiguousarray(expected[index]).tobytes()
    assert sorted(np.concatenate([index for _, index in alone])) == list(range(18))
    for step, size in ((1, 2), (2, 3)):  # each begins at this position, as a resumed run does
        images, index = alone[step]
        # All ranks for one type, and the last for the others, since each takes a moment to begin.
        for rank in range(size) if name == "float32" else [size - 1]:
            ((its_images, its_index),) = read(source, rank, size, step * 6, 1)
            places = slice(rank * 6 // size, (rank + 1) * 6 // size)
            assert its_images.tobytes() == images[places].tobytes()
            assert its_index.tolist() == index[places].tolist()


# on several ranks


SHAPES = [(18, 7), (18, 3, 5, 2), (18, 2, 3, 4, 2)]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Every kind of file with every type, as one rank opens it; shapes take turns: each kind and type has each."""
    folder = tmp_path_factory.mktemp("table")
    rows = []
    for kind, (write, names) in enumerate(ALL):
        for place, name in enumerate(names):
            shape = SHAPES[(kind + place) % 3]
            if write in (netcdf, netcdf3, zarr) and len(shape) == 2:
                shape = (18, 4, 5, 1)  # variables have dimensions, and become channels
            array, below = numbers(name, shape), folder / f"{kind} {place}"
            below.mkdir()
            expected = f"{name.strip('>')} {len(shape)} {math.prod(shape)}.npy"
            np.save(folder / expected, array.astype(array.dtype.newbyteorder("=")))
            row = {"data": write(below, array), "expected": expected, "tfrecord": None, "axes": axes_of(array)}
            if write is tfrecords:
                row["tfrecord"] = {"shape": ",".join(map(str, shape[1:])), "dtype": name}
            if write in (netcdf, netcdf3, zarr, shards, gzip_shards):
                row["axes"] = None  # the file says it
            rows.append(row | {"fingerprint": opened(row, ALONE).fingerprint})
    order = [index.tolist() for _, _, index in slices(opened(rows[0], ALONE), 0, 1, start=0)]
    assert sorted(number for batch in order for number in batch) == list(range(18))
    (folder / "table.json").write_text(json.dumps({"order": order, "rows": rows}))
    return folder


def test_one_rank_reads_each_row_of_the_table_exactly(table):
    facts = json.loads((table / "table.json").read_text())
    assert len(facts["rows"]) > 160
    assert [row["data"] for row in facts["rows"] if not is_exact(row, table, facts["order"], ALONE)] == []


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.long)])
def test_several_ranks_read_each_row_of_the_table_exactly(table, size):
    """From the start, and as after a resume: from each step before which a run of one rank could have stopped."""
    command = [
        *launcher(size, CONTROLLERS[0]),
        sys.executable,
        ROOT / "tests" / "support" / "table_of_arrays.py",
        table,
    ]
    done = run(command, ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    count, *wrong = json.loads((table / f"wrong on {size}.json").read_text())
    assert count > 160 and wrong == [[]] * size


@pytest.mark.parametrize(("write", "names"), KINDS, ids=lambda each: getattr(each, "__name__", "all types"))
@pytest.mark.parametrize("shape", [(9, 4), (9, 3, 4), (9, 2, 3, 4, 2)], ids=str)
def test_vectors_fields_and_volumes_of_each_type(tmp_path, write, names, shape):
    if write in (netcdf, netcdf3, zarr) and len(shape) < 4:
        shape = (*shape, 1) if len(shape) == 3 else (*shape[:1], 2, 3, *shape[1:])
    order = np.array([8, 0, 3, 3, 7])
    for name in names:
        array, below = numbers(name, shape), tmp_path / name.replace(">", "big ")
        below.mkdir()
        source = seen(arrays(write(below, array), axes={2: "C", 3: "HW", 4: None, 5: "DHWC"}[len(shape)]))
        expected = handed(array if len(shape) != 3 else array[..., None])
        assert source.fetch_batch(order).tobytes() == np.ascontiguousarray(expected[order]).tobytes(), name
        assert source.fetch(4).tobytes() == np.ascontiguousarray(expected[4]).tobytes(), name


@pytest.mark.parametrize("write", [write for write, _ in KINDS])
def test_floats_from_0_to_1_keep_more_than_256_values(tmp_path, write):
    array = np.random.default_rng(0).random((18, 8, 8, 3), np.float32)
    source = seen(arrays(write(tmp_path, array), values=None))
    images = source.fetch_batch(np.arange(18))
    assert len(np.unique(images)) > 3000
    np.testing.assert_allclose(images, array * 2 - 1, atol=1e-6)
    np.testing.assert_allclose(source.values.images.inverse(images), array, rtol=1e-5, atol=1e-7)
