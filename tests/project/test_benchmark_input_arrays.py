"""benchmarks/input_arrays.py, in short: each reader reads each kind of file, and the table has the ratios."""

import sys

import numpy as np
import pytest

from launching import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
import input_arrays


@pytest.mark.long
@pytest.mark.timeout(300)
def test_each_reader_reads_each_kind_of_file(tmp_path, monkeypatch):
    monkeypatch.setattr(input_arrays, "LARGE_SHAPE", (4, 4, 2))
    input_arrays.make(tmp_path / "made", (4, 4, 2), 1)
    results = {}
    for kind, file in input_arrays.FILES.items():
        for how in input_arrays.HOWS[: 4 if kind == "packed" else 5]:
            rates = input_arrays.measured(how, str(tmp_path / "made" / file), 0.05)
            assert min(rates) > 0
            results.setdefault(f"fields, {kind}", {})[how] = [rates]
    results["megabytes of the process"] = {}
    for kind, write in input_arrays.LARGE.items():
        (folder := tmp_path / kind).mkdir()
        own, most = input_arrays.measured("memory", str(write(folder, 70)), 0)
        assert 10 < own < most
        results["megabytes of the process"][kind] = (own, most)
    lines = input_arrays.table(results).splitlines()
    assert len(lines) == 2 + 4 * 5 + (4 + 3) + 6 and sum("bare, of .npy" in line for line in lines) == 1
    assert all(line.count("|") == 8 for line in lines)


def test_the_bare_reads_give_the_samples_themselves(tmp_path):
    input_arrays.make(tmp_path / "made", (4, 4, 2), 1)
    array = np.load(tmp_path / "made" / "a.npy")
    for file in input_arrays.FILES.values():
        count, read = input_arrays.single_reader(str(tmp_path / "made" / file))
        assert count == len(array)
        for place in (0, 5, count // 2, count - 1):
            np.testing.assert_array_equal(read(place), array[place])
