"""benchmarks/input_arrays.py, in short: each reader reads each kind of file, and the table has the ratios."""

import sys

import pytest

from launching import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
import input_arrays


@pytest.mark.timeout(300)
def test_each_reader_reads_each_kind_of_file(tmp_path):
    input_arrays.make(tmp_path / "made", (4, 4, 2), 1)
    results = {}
    for kind, file in input_arrays.FILES.items():
        for how in ("hvdgan", "bare", "generator") if kind != "shards" else ("hvdgan",):
            rate = input_arrays.measured(how, str(tmp_path / "made" / file), 0.05)
            assert rate > 0
            results.setdefault(f"fields, {kind}", {})[how] = [rate]
    memory = input_arrays.measured("memory", str(input_arrays.sparse(tmp_path / "1.npy", 1)), 0)
    results["megabytes of the process"] = {"npy, 1 GB": [memory]}
    lines = input_arrays.table(results).splitlines()
    assert len(lines) == 2 + 3 * 3 + 1 + 1 and sum("of bare .npy" in line for line in lines) == 1
