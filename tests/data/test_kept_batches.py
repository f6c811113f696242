"""The order, the batches and their bits are those that were recorded, for each kind of data and any number of ranks.

`python tests/data/test_kept_batches.py --write` records them on one rank. If the record changes, a resumed run sees
other batches than the uninterrupted one would, so the change belongs in CHANGELOG.md.
"""

import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray
import zarr
from PIL import Image

sys.path.append(str(Path(__file__).parents[1] / "support"))

import launching
from hvdgan.train import main as train
from sample_digests import STEPS, seen_in
from tfrecord_files import write

TABLE = Path(__file__).with_name("kept_batches.json")
COUNT = 13
"""samples: with 6 in a batch, an epoch ends within the third step and another within the fifth"""

RUN = "--global-batch-size 6 --sample-every 0 --checkpoint-every 0 --run-dir run"
PHOTOS = "--data {0}/photos --image-size 10,8 --fit crop --max-bad-fraction 0.4"
PAIRS = "--recipe sample_digests:Pairs"
VOLUMES = (
    f"{PAIRS} --data {{0}}/a.h5:group/fields --values range:-500,500 --inputs coarse --input-values standard "
    "--constants ground --constant-values none --conditions energy,angles "
    "--condition-values energy=range:-6,6;angles_0=standard;angles_1=none"
)
RECORDS = (
    f"{PAIRS} --data {{0}}/fields-*.tfrecord --tfrecord-image field --tfrecord-shape 4,6,2 --tfrecord-dtype float32 "
    "--values standard --tfrecord-input coarse --tfrecord-input-shape 2,3,1 --input-values none --conditions energy"
)
# A comma stands before what distinguishes a variant of a kind.
KINDS = {
    "pictures": PHOTOS,
    "pictures, flipped": f"{PHOTOS} --flip",
    "pictures, some held out": f"{PHOTOS} --holdout 0.2",
    "pictures, packed": "--data packed --image-size 10,8 --holdout 0.2",
    "pairs in folders": f"{PAIRS} --data {{0}}/pairs --image-size 8 --fit pad",
    "pairs as halves": f"{PAIRS} --data {{0}}/halves --image-size 8 --flip",
    "digits": "--data digits --image-size 8",
    "digits, outlines": f"{PAIRS} --data digits --image-size 8",
    "npy of pictures": "--data {0}/pictures.npy --holdout 0.2",
    "npz of pictures": "--data {0}/pictures.npz --image-size 8 --conditions energy",
    "npy": "--data {0}/fields.npy --values standard --holdout 0.2",
    "npy of vectors": "--data {0}/vectors.npy --values standard",
    "npy, cropped": "--data {0}/fields.npy --values standard --crop 3,4 --flip-axes height,width",
    "npy by log1p": "--data {0}/deposits.npy --axes HW --values log1p+standard",
    "npz": "--data {0}/fields.npz --axes HW --values range:-6,6 --conditions energy,angles",
    "npy folder": "--data {0}/samples --axes DHW",
    "hdf5": VOLUMES,
    "hdf5, cropped": f"{VOLUMES} --crop 2,4 --flip-axes height,width",
    "hdf5 files joined": "--data {0}/parts/*.h5:ECAL --axes DHW --values standard --conditions energy --holdout 0.2",
    "hdf5, packed": "--data packed --values standard --conditions energy --holdout 0.2",
    "netcdf": "--data {0}/a.nc:t2m,u10 --values standard --conditions hour --max-bad-fraction 0.2",
    "zarr": "--data {0}/a.zarr:u10,q --values u10=standard;q=none",
    "zarr without names": "--data {0}/nameless.zarr:ECAL --axes DHW --values none",
    "tfrecord of pictures": "--data {0}/pictures-*.tfrecord --image-size 8 --fit crop --tfrecord-label label",
    "tfrecord": RECORDS,
}
PACKED = {
    "pictures, packed": "{0}/photos packed --image-size 10,8 --fit crop --max-bad-fraction 0.4",
    "hdf5, packed": "{0}/parts/*.h5:ECAL packed --axes DHW --conditions energy",
}
"""arguments of hvdgan.prepare"""
BAD_PHOTOS = ("cat/truncated.jpg",)
SKIPPED = {**{kind: BAD_PHOTOS for kind in KINDS if PHOTOS in KINDS[kind]}, "netcdf": ("[7]",)}
"""names of bad samples, which the log must have"""
ALONE = ((1, STEPS),)
COURSES = {"1-rank": ALONE, "2-ranks": ((2, STEPS),), "1-rank-then-3": ((1, 3), (3, STEPS))}
COURSES["3-ranks-then-2"] = ((3, 3), (2, STEPS))
"""ranks, and the step up to which they run"""
QUICK = {"hdf5": "1-rank-then-3", "pairs in folders": "2-ranks"}
"""courses of a kind that ranks index together and one that they list; of others, except variants, 1-rank"""


def write_all(folder):
    """Write the data of all kinds; each function has a generator of its own, so that the others' data do not move."""
    kinds = (write_photos, write_pairs, write_numpy, write_hdf5, write_xarray, write_tfrecords)
    for number, write_kind in enumerate(kinds):
        write_kind(folder, np.random.default_rng(number))


def normal(random, *shape):
    """Numbers float32 from -6 to 6, made by additions alone, so that they are the same on every machine."""
    return random.random((12, *shape), np.float32).sum(axis=0) - np.float32(6)


def picture(random, height, width, mode="RGB"):
    return Image.fromarray(random.integers(0, 256, (height, width, 4), np.uint8), "RGBA").convert(mode)


def save(path, write, *values, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, *values, **options)


def write_photos(folder, random):
    """Class folders with PNG and JPEG files of many sizes and modes, one turned, one truncated."""
    turned = Image.Exif()
    turned[274] = 6
    for number in range(COUNT):
        suffix, modes = (".png", ("RGB", "L", "RGBA", "P")) if number % 3 else (".jpg", ("RGB", "L"))
        image = picture(random, *random.integers(12, 70, 2).tolist(), modes[number % len(modes)])
        path = folder / "photos" / ("bird", "cat")[number % 2] / f"{number:02}{suffix}"
        save(path, image.save, exif=turned if number == 3 else b"")
    whole = (folder / "photos/bird/06.jpg").read_bytes()
    (folder / "photos/cat/truncated.jpg").write_bytes(whole[: len(whole) // 2])


def write_pairs(folder, random):
    for number in range(COUNT):
        height, width = random.integers(8, 30, 2).tolist()
        save(folder / "pairs/A" / f"{number:02}.png", picture(random, height, width).save)
        save(folder / "pairs/B" / f"{number:02}.png", picture(random, height, width).save)
        save(folder / "halves" / f"{number:02}.png", picture(random, height, 2 * height).save)


def write_numpy(folder, random):
    np.save(folder / "pictures.npy", random.integers(0, 256, (COUNT, 8, 6, 3), np.uint8))
    grey = random.integers(0, 256, (COUNT, 12, 12), np.uint8)
    np.savez(folder / "pictures.npz", images=grey, labels=np.arange(COUNT) % 4, energy=random.random(COUNT))
    np.save(folder / "fields.npy", normal(random, COUNT, 4, 6, 2))
    np.save(folder / "vectors.npy", normal(random, COUNT, 7))
    conditions = {"energy": normal(random, COUNT), "angles": normal(random, COUNT, 2)}
    np.savez(folder / "fields.npz", images=normal(random, COUNT, 4, 6), **conditions)
    for number, sample in enumerate(random.random((COUNT, 3, 4, 5)).astype(">f8")):
        ordered = np.asfortranarray(sample) if number % 2 else sample
        save(folder / "samples" / "abc"[number % 3] / f"{number:02}.npy", np.save, ordered)
    # These logarithms are almost float32 themselves, so that every mathematical library rounds them to the same one.
    numbers = 9 * random.random(20 * COUNT * 4 * 6, np.float32)
    logarithms = np.log1p(numbers.astype(np.float64))
    sure = np.abs(logarithms - logarithms.astype(np.float32)) < 0.1 * np.spacing(logarithms.astype(np.float32))
    np.save(folder / "deposits.npy", numbers[sure][: COUNT * 4 * 6].reshape(COUNT, 4, 6))


def write_hdf5(folder, random):
    with h5py.File(folder / "a.h5", "w") as file:
        fields = random.integers(-500, 500, (COUNT, 4, 6, 2), np.int16)
        file.create_dataset("group/fields", data=fields, chunks=(3, 3, 6, 2), compression="gzip", shuffle=True)
        file["coarse"], file["labels"] = normal(random, COUNT, 2, 3), np.arange(COUNT) % 3
        file["energy"], file["angles"] = normal(random, COUNT), normal(random, COUNT, 2)
        file["ground"] = normal(random, 4, 6)
    (folder / "parts").mkdir()
    for number, count in enumerate((5, 0, 1, COUNT - 6)):
        with h5py.File(folder / "parts" / f"{number}.h5", "w") as file:
            file["ECAL"], file["energy"] = normal(random, count, 3, 4, 5), normal(random, count)


def write_xarray(folder, random):
    dims, hour = ("time", "lat", "lon"), ("time", np.arange(COUNT) % 24)
    t2m, u10 = normal(random, COUNT, 4, 6) + 280, normal(random, COUNT, 4, 6)
    t2m[7, 1, 2] = np.nan
    weather = xarray.Dataset({"t2m": (dims, t2m), "u10": (dims, u10), "q": (dims, 2 * u10), "hour": hour})
    packed = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 273.15, "_FillValue": np.int16(-32768)}
    weather.to_netcdf(folder / "a.nc", engine="h5netcdf", encoding={"t2m": packed})
    weather.to_zarr(folder / "a.zarr", consolidated=False, encoding={"u10": {"chunks": (4, 3, 6)}})
    group = zarr.open_group(folder / "nameless.zarr", mode="w")
    group.create_array("ECAL", data=normal(random, COUNT, 3, 4, 5), chunks=(4, 3, 3, 5))


def write_tfrecords(folder, random):
    fields, coarse, energy = normal(random, COUNT, 4, 6, 2), normal(random, COUNT, 2, 3, 1), normal(random, COUNT)
    pictures, samples = [], []
    for number in range(COUNT):
        file = io.BytesIO()
        picture(random, *random.integers(12, 40, 2).tolist()).save(file, "PNG" if number % 2 else "JPEG")
        pictures.append({"image": file.getvalue(), "label": number % 5})
        sample = {"field": fields[number], "coarse": coarse[number], "energy": energy[number]}
        samples.append({name: value.ravel().tolist() for name, value in sample.items()})
    for name, records in (("pictures", pictures), ("fields", samples)):
        for part, some in enumerate((records[:4], records[4:])):
            write(folder / f"{name}-{part}.tfrecord", some)


def batches(kind, course, data, folder):
    """The samples of each global batch, from a run of some ranks that others resume."""
    if kind in PACKED:
        words = [sys.executable, "-m", "hvdgan.prepare", *PACKED[kind].format(data).split()]
        assert launching.run(words, folder).returncode == 0
    flags = KINDS[kind].format(data).split()
    for default in ("--recipe sample_digests:Alone", "--holdout 0", RUN):
        flags += default.split() if default.split()[0] not in flags else []
    for ranks, steps in course:
        words = [*flags, "--max-steps", str(steps), "--report", "never"]
        if course == ALONE:
            with contextlib.chdir(folder):
                assert train(words) == 0
        else:
            launching.train(folder, *words, ranks=ranks)
    said = (folder / "run" / "log.txt").read_text()
    assert [name for name in SKIPPED.get(kind, ()) if name not in said] == [], said
    return seen_in(folder)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_all(folder)
    return folder


CASES = [pytest.param(kind, QUICK.get(kind, "1-rank")) for kind in KINDS if "," not in kind]
CASES += [pytest.param(kind, "3-ranks-then-2", marks=pytest.mark.long) for kind in KINDS]


@pytest.mark.parametrize(("kind", "course"), CASES)
def test_the_batches_are_those_that_were_recorded(tmp_path, data, kind, course):
    assert batches(kind, COURSES[course], data, tmp_path) == json.loads(TABLE.read_text())[kind]


def record():
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data")
        data.mkdir()
        write_all(data)
        table = {kind: batches(kind, ALONE, data, Path(tempfile.mkdtemp(dir=folder))) for kind in KINDS}
    lines = [f"{json.dumps(kind)}: {json.dumps(digests)}" for kind, digests in table.items()]
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__" and "--write" in sys.argv:
    record()
