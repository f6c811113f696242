"""Opening data on two ranks: one lists the files, each reads its share of them, and both hold the same."""

import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from hvdgan.data import hold_out, open_source
from hvdgan.data.packing import Plan, pack
from hvdgan.data.store import spread
from hvdgan.errors import RunError, UserError
from hvdgan.settings.config import Config
from hvdgan.settings.data import ArrayConfig, TFRecordConfig
from tfrecord_files import write

COUNT = 100
"""files, of one sample each"""
ARRAYS = np.random.default_rng(0).normal(size=(COUNT, 4, 3, 2)).astype(np.float32)
LABELS, ENERGY = np.arange(COUNT) % 3, 1 + np.arange(COUNT) / 128
SETTINGS = ArrayConfig(values="none", conditions=("energy",))


def records():
    for number, sample in enumerate(ARRAYS):
        features = {"x": sample.tobytes(), "label": int(LABELS[number]), "energy": ENERGY[number]}
        write(f"data/{number:03}.tfrecord", [features])
    named = TFRecordConfig(image="x", shape="4,3,2", dtype="float32", label="label")
    return Config(data="data/*.tfrecord", tfrecord=named, arrays=SETTINGS)


def hdf5_files():
    for number in range(COUNT):
        with h5py.File(f"data/{number:03}.h5", "w") as file:
            parts = {"images": ARRAYS, "labels": LABELS, "energy": ENERGY}
            file.update({name: array[number : number + 1] for name, array in parts.items()})
    return Config(data="data", arrays=SETTINGS)


def packed():
    np.savez("fields.npz", images=ARRAYS, labels=LABELS, energy=ENERGY)
    config = Config(data="fields.npz", arrays=SETTINGS)
    plan = Plan(config=config, folder=Path("data"), shards=COUNT, pairs=False, compression=None)
    assert [*pack(plan, plan.opened(), None)]
    return Config(data="data")


@pytest.mark.parametrize("kind", [records, pytest.param(hdf5_files, marks=pytest.mark.long), packed])
def test_a_rank_reads_its_share_of_the_files_and_rank_0_lists_them(ranks, tmp_path, monkeypatch, kind):
    """What a rank need not read is missing on rank 1, and damaged on rank 0. Both read 64 samples, to compare them."""
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    config = kind()
    # A copy of rank 0's files, since the bytes of a TFRecord differ whenever it is written.
    written = Path(ranks.gather(str(tmp_path), "written")[0])
    shutil.copytree(written / "data", "here/data")
    monkeypatch.chdir("here")
    alone = open_source(config)
    files, half = sorted(Path("data").glob("[!h.]*")), COUNT // 2
    held_out_here = range(COUNT)[ranks.rank * half :][:half]
    spared = {*range(COUNT)} - {*range(COUNT)[ranks.rank :: 2], *spread(COUNT).tolist(), *held_out_here}
    expected = hold_out(alone, 0.2)[1].samples
    assert len(files) == COUNT and len(spared) > 5
    for number in spared:
        files[number].unlink() if ranks.rank else files[number].write_bytes(b"damaged")
    source = open_source(config, peers=ranks)
    assert source.fingerprint == alone.fingerprint
    assert source.labels.tolist() == LABELS.tolist() and source.conditions[:, 0].tolist() == ENERGY.tolist()
    assert hold_out(source, 0.2, ranks)[1].samples.indices.tolist() == expected.indices.tolist()


def test_damaged_labels_in_a_file_that_one_rank_reads_end_both(ranks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = packed()
    path = sorted(Path("data").glob("*.h5"))[1]
    with h5py.File(path) as file:
        place = file["labels"].id.get_chunk_info(0).byte_offset
    content = bytearray(path.read_bytes())
    content[place] ^= ranks.rank
    path.write_bytes(content)
    with pytest.raises(RunError, match=rf"^--data {path}:labels\[0\] cannot be read: "):
        open_source(config, peers=ranks)


def test_a_table_of_conditions_is_read_by_rank_0(ranks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", ARRAYS)
    if ranks.is_root:
        Path("c.csv").write_text("\n".join(["energy,mass", *(f"{each},{1 / each}" for each in ENERGY)]) + "\n")
    settings = ArrayConfig(values="none", condition_table=Path("c.csv"))
    config = Config(data="a.npy", arrays=settings)
    conditions = open_source(config, peers=ranks).conditions
    assert conditions.tolist() == np.stack([ENERGY, 1 / ENERGY], 1).tolist()
    if ranks.is_root:
        Path("c.csv").write_text("energy,mass\n1,2\n")
    with pytest.raises(UserError, match="^--condition-table c.csv: 1 rows, and the data have 100 samples"):
        open_source(config, peers=ranks)
