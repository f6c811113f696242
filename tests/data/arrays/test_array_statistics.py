"""Means and deviations: the same bits on any number of ranks, over the finite samples to train on alone, and kept.

Modules: data.arrays.statistics
"""

import os
import sys

import numpy as np
import pytest

from hvdgan.cli.config import Config
from hvdgan.cli.data_config import ArrayConfig
from hvdgan.cli.errors import UserError
from hvdgan.cli.shared_errors import ALONE
from hvdgan.data import hold_out, open_source
from hvdgan.data.arrays import statistics
from hvdgan.data.arrays.mapped import mapped
from hvdgan.data.arrays.statistics import with_statistics
from hvdgan.data.base.scan_cache import NO_SCANS, ScanCache
from hvdgan.values.value_map import parse
from thread_ranks import Threads

FIELDS = np.random.default_rng(0).normal((3, -1000), (1e-3, 50), (1203, 4, 5, 2)).astype(np.float32)


def opened(path, array, values="standard", **more):
    np.savez(path / "a.npz", images=array, **more)
    beside = {"inputs": "inputs"} if "inputs" in more else {}
    config = Config(data=str(path / "a.npz"), arrays=ArrayConfig(values=values, input_values=values, **beside))
    return open_source(config, paired="inputs" in more)


@pytest.fixture
def small_blocks(monkeypatch):
    """So that there are many of them: 25 samples each."""
    monkeypatch.setattr(statistics, "BLOCK_BYTES", 25 * 4 * 5 * 2 * 4)


@pytest.mark.usefixtures("small_blocks")
def test_they_are_those_of_numpy(tmp_path):
    values = with_statistics(opened(tmp_path, FIELDS), ALONE, NO_SCANS)
    (step,) = values.images.chains[0]
    wide = FIELDS.astype(np.float64).reshape(-1, 2)
    np.testing.assert_allclose(step.means, wide.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(step.deviations, wide.std(axis=0), rtol=1e-10)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("values", ["standard", "power:0.5+standard+power:2+standard", "0=standard;1=none"])
def test_any_number_of_ranks_has_the_same_bits(tmp_path, values):
    source = opened(tmp_path, FIELDS, values)
    alone = with_statistics(source, ALONE, NO_SCANS)
    assert not alone.images.lacks_statistics
    for size in (2, 3):
        found = {}

        def work(peers, found=found):
            found[peers.rank] = with_statistics(source, peers, NO_SCANS)

        assert Threads(size).run(work) == [None] * size
        assert [*found.values()] == [alone] * size  # floats are equal to the bit


def test_what_networks_see_has_mean_0_and_deviation_1(tmp_path):
    source = opened(tmp_path, FIELDS, inputs=FIELDS[:, :2, :2] * 7)
    seen = mapped(source, with_statistics(source, ALONE, NO_SCANS))
    inputs, images = seen.layout.split(seen.fetch_batch(np.arange(len(seen))))
    for part in (inputs, images):
        np.testing.assert_allclose(
            part.mean(axis=(0, 1, 2)), 0, atol=2e-3
        )  # of float32 numbers that are close together
        np.testing.assert_allclose(part.std(axis=(0, 1, 2)), 1, rtol=2e-3)


def test_held_out_samples_do_not_count(tmp_path):
    array = FIELDS.copy()
    source = opened(tmp_path, array)
    _, held = hold_out(source, 0.2)
    array[held.indices] += 1e4
    training, _ = hold_out(opened(tmp_path, array), 0.2)
    assert training.indices.tolist() == np.setdiff1d(np.arange(len(array)), held.indices).tolist()
    (step,) = with_statistics(training, ALONE, NO_SCANS).images.chains[0]
    np.testing.assert_allclose(step.means, array[training.indices].astype(np.float64).mean(axis=(0, 1, 2)), rtol=1e-12)


@pytest.mark.usefixtures("small_blocks")
def test_samples_that_are_not_finite_do_not_count(tmp_path):
    array = FIELDS.copy()
    array[100, 1, 1, 0], array[500, 0, 0, 1] = np.nan, np.inf
    (step,) = with_statistics(opened(tmp_path, array), ALONE, NO_SCANS).images.chains[0]
    others = np.delete(FIELDS, [100, 500], axis=0).astype(np.float64)
    np.testing.assert_allclose(step.means, others.mean(axis=(0, 1, 2)), rtol=1e-13)


@pytest.mark.parametrize("size", [1, 3])
def test_a_constant_channel_is_refused_on_every_rank(tmp_path, size):
    array = FIELDS.copy()
    array[..., 1] = 4
    source = opened(tmp_path, array)
    failures = Threads(size).run(lambda peers: with_statistics(source, peers, NO_SCANS))
    for failure in failures:
        assert isinstance(failure, UserError)
        assert str(failure) == (
            f"--data {tmp_path}/a.npz: images: channel 1 hardly differs: mean 4, deviation 0, by which standard would "
            "divide; give it another map, such as range:LOW,HIGH or none"
        )


@pytest.mark.parametrize("value", [0.1, 65.4, 273.15, 1e6 / 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("values", ["standard", "log1p+standard"])
def test_a_constant_channel_is_refused_although_sums_are_rounded(tmp_path, value, dtype, values):
    array = FIELDS.astype(dtype)
    array[..., 1] = value
    with pytest.raises(UserError, match="images: channel 1 hardly differs: mean .*, deviation .*, by which"):
        with_statistics(opened(tmp_path, array, values), ALONE, NO_SCANS)


def test_so_is_one_of_millions_of_numbers():
    count, mean, squares = statistics.moments_of(np.full((3_000_000, 2), 0.1))
    with pytest.raises(UserError, match=r"channel a hardly differs: mean 0\.1, deviation 0, "):
        parse("standard", "--values", ("a", "b")).with_statistics(mean.tolist(), np.sqrt(squares / count).tolist())


@pytest.mark.usefixtures("small_blocks")
def test_numbers_that_differ_by_little_of_their_mean_are_mapped(tmp_path):
    """Julian dates in minutes, whose deviation is 4e-10 of their mean, are exact in float64."""
    days = 2459000.5 + np.random.default_rng(1).normal(0, 1e-3, (1203, 4, 5, 2))
    source = opened(tmp_path, days)
    seen = mapped(source, with_statistics(source, ALONE, NO_SCANS)).fetch_batch(np.arange(len(days)))
    apart = days - 2459000.5
    expected = (apart - apart.mean(axis=(0, 1, 2))) / apart.std(axis=(0, 1, 2))
    np.testing.assert_allclose(seen, expected, atol=1e-5)


def test_no_finite_sample_is_refused(tmp_path):
    with pytest.raises(UserError, match="none of its 3 samples has finite images only"):
        with_statistics(opened(tmp_path, np.full((3, 4, 4), np.nan)), ALONE, NO_SCANS)


def count_reads(source):
    read, fetch = [], source.fetch_batch
    source.fetch_batch = lambda indices: read.append(len(indices)) or fetch(indices)
    return read


@pytest.mark.parametrize("size", [1, 2])
def test_they_are_kept_for_the_next_start_with_the_same_data(tmp_path, size):
    """Rank 1 has no run folder of its own."""
    source = opened(tmp_path, FIELDS)
    read = count_reads(source)
    found = []

    def start(peers):
        scans = ScanCache(tmp_path / "cache" if peers.rank == 0 else tmp_path / "nowhere", is_root=peers.rank == 0)
        found.append(with_statistics(source, peers, scans))
        scans.write()

    assert Threads(size).run(start) == [None] * size
    assert sum(read) == len(FIELDS)
    read.clear()
    assert Threads(size).run(start) == [None] * size
    assert read == [] and found == [found[0]] * 2 * size
    other = opened(tmp_path, FIELDS * 2)
    read = count_reads(other)
    source = other
    assert Threads(size).run(start) == [None] * size
    assert sum(read) == len(FIELDS) and found[-1] != found[0]


def samples_read(folder, values):
    """How many samples a start reads for the statistics of a.npy, and the maps."""
    source = open_source(Config(data=str(folder / "a.npy"), arrays=ArrayConfig(values=values)))
    read, scans = count_reads(source), ScanCache(folder / "cache")
    found = with_statistics(source, ALONE, scans)
    scans.write()
    return sum(read), found


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("squash = np.sqrt\nunsquash = np.square", "squash = np.cbrt\nunsquash = lambda x: x ** 3"),
        ("squash = unsquash = np.positive", "squash = lambda x: np.minimum(x, 1000)\nunsquash = np.positive"),
    ],
    ids=["other numbers", "the same numbers from 0 to 1"],
)
def test_they_are_computed_again_once_a_map_of_ones_own_has_changed(tmp_path, monkeypatch, before, after):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # Python takes it for new within the second of a change
    np.save(tmp_path / "a.npy", np.abs(FIELDS) + 1)
    counts, maps = [], []
    for code in (before, before, after):
        (tmp_path / "changed_maps.py").write_text(f"import numpy as np\n{code}\n")
        sys.modules.pop("changed_maps", None)
        count, found = samples_read(tmp_path, "changed_maps:squash,unsquash+standard")
        counts.append(count)
        maps.append(found)
    assert counts == [len(FIELDS), 0, len(FIELDS)]
    assert maps[0] == maps[1] != maps[2]


@pytest.mark.parametrize("text", ["power:0.8500001+standard", "range:0,1000001+standard"])
def test_maps_that_differ_in_a_late_digit_have_statistics_of_their_own(tmp_path, text):
    np.save(tmp_path / "a.npy", np.abs(FIELDS))
    other = text.replace("0001", "0002")
    assert [samples_read(tmp_path, values)[0] for values in (text, other, other)] == [len(FIELDS), len(FIELDS), 0]


def test_a_sample_that_was_changed_in_place_is_noticed_also_with_a_holdout(tmp_path):
    """The fingerprint looks at 64 samples only; the time of the file tells."""
    found = []
    for number in (1.0, 1e6):
        np.save(tmp_path / "a.npy", FIELDS)
        array = np.load(tmp_path / "a.npy", mmap_mode="r+")
        array[7] = number  # none of the 64
        array.flush()
        del array
        os.utime(tmp_path / "a.npy", ns=(0, int(number)))
        source = open_source(Config(data=str(tmp_path / "a.npy"), arrays=ArrayConfig(values="standard")))
        training, _ = hold_out(source, 0.05)
        scans = ScanCache(tmp_path / "cache")
        found.append((source.fingerprint, with_statistics(training, ALONE, scans)))
        scans.write()
    assert found[0][0] == found[1][0] and found[0][1] != found[1][1]
