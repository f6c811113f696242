"""A table of arrays of every kind of file and type, and the program by which each of several ranks reads its slices.

`horovodrun -np 3 python table_of_arrays.py FOLDER` prints the rows that some rank did not read exactly.
"""

import json
import sys
from pathlib import Path

import numpy as np

from arrays_on_disk import (
    arrays,
    chunked_hdf5,
    gzip_hdf5,
    handed,
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
    seen,
    zarr,
)
from hvdgan.cli.data_config import TFRecordConfig
from hvdgan.distributed import joining
from packed_arrays import pack
from reading import batches_of
from tfrecord_files import write

BATCH = 6
STEPS = 3
"""global batches of 18 samples, an epoch"""


def shards(folder, array):
    np.save(folder / "a.npy", array)
    return str(pack(folder / "a.npy", folder / "shards", "--axes", axes_of(array)))


def gzip_shards(folder, array):
    np.save(folder / "a.npy", array)
    return str(pack(folder / "a.npy", folder / "shards", "--axes", axes_of(array), "--compression", "gzip"))


def tfrecords(folder, array):
    """Raw bytes in two files."""
    for number, some in enumerate((array[:7], array[7:])):
        write(folder / f"{number}.tfrecord", [{"image": sample.tobytes()} for sample in some])
    return f"{folder}/*.tfrecord"


TYPES = ["float16", "float32", "float64", "uint8", "int8", "uint16", "int16", "uint32", "int32", ">f4", "F"]
OF_NETCDF = ["float32", "float64", "uint8", "int8", "uint16", "int16", "uint32", "int32", ">f4"]
OF_NETCDF3 = ["float32", "float64", "int8", "int16", "int32"]
KINDS = [
    *[(write, TYPES) for write in (npy, npz, packed_npz, npy_folder, hdf5, gzip_hdf5, chunked_hdf5, lzf_hdf5)],
    (many_hdf5, TYPES),
    (netcdf, OF_NETCDF),
    (netcdf3, OF_NETCDF3),
    (zarr, TYPES[:-1]),
    (nameless_zarr, TYPES[:-1]),
    (nameless_zarr2, TYPES[:-1]),
]
"""functions that write an array, and the types that their files have"""
ALL = [*KINDS, (shards, TYPES[:-1]), (gzip_shards, TYPES[:-1]), (tfrecords, TYPES[:-2])]
"""the same with the kinds that hold packed samples"""


def numbers(name, shape=(18, 3, 5, 2)):
    """An array over the whole range of a type, whose numbers need all of its bits."""
    if name == "F":
        return np.asfortranarray(numbers("float32", shape))
    dtype, generator = np.dtype(name), np.random.default_rng(0)
    if dtype.kind == "f":
        return (generator.standard_normal(shape) * 1000).astype(dtype)
    limits = np.iinfo(dtype)
    return generator.integers(limits.min, limits.max, shape, dtype.newbyteorder("="), endpoint=True)


def axes_of(array):
    return {2: "C", 3: "HW", 4: "HWC", 5: "DHWC"}[array.ndim]


def opened(row, peers):
    """The source of a row, as networks see it."""
    tfrecord = TFRecordConfig(**row["tfrecord"]) if row["tfrecord"] else None
    return seen(arrays(row["data"], axes=row["axes"], peers=peers, tfrecord=tfrecord))


def slices(source, rank, size, *, start):
    """What a rank reads in a run that begins, or is resumed, at a step: (step, samples, their numbers) to the end."""
    found = []
    with batches_of(source, global_batch_size=BATCH, rank=rank, size=size, start_step=start) as batches:
        for step in range(start, STEPS):
            each = next(batches)
            found.append((step, each["images"].numpy(), each["index"].numpy()))
    return found


def is_exact(row, folder, order, ranks):
    """Whether this rank reads the samples of its places in the one order, bit by bit, from each step to the end.

    A run of another number of ranks could have stopped before each of these steps. Its checkpoint holds the position
    and the fingerprint of the data, which must be the same here.
    """
    expected = handed(np.load(folder / row["expected"]))
    source = opened(row, ranks)
    first, past = (number * BATCH // ranks.size for number in (ranks.rank, ranks.rank + 1))
    return source.fingerprint == row["fingerprint"] and all(
        index.tolist() == order[step][first:past]
        and images.tobytes() == np.ascontiguousarray(expected[index]).tobytes()
        and images.dtype == expected.dtype
        for start in range(STEPS)
        for step, images, index in slices(source, ranks.rank, ranks.size, start=start)
    )


def main(folder):
    table = json.loads((folder / "table.json").read_text())
    ranks = joining.start()
    wrong = [row["data"] for row in table["rows"] if not is_exact(row, folder, table["order"], ranks)]
    gathered = ranks.gather(wrong, "the wrong rows")
    if ranks.is_root:
        (folder / f"wrong on {ranks.size}.json").write_text(json.dumps([len(table["rows"]), *gathered]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
