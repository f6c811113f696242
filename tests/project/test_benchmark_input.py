"""The benchmark of reading, shortened: each reader reads what it is for, and the table has its rates."""

import json
import sys

import pytest

from launching import ROOT, run


@pytest.mark.long
def test_the_benchmark_in_short(tmp_path):
    flags = "--images 130 --megabytes 9 --rounds 1 --seconds 0.1 --cores 1 --json a.json"
    done = run([sys.executable, ROOT / "benchmarks" / "input.py", *flags.split()], tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "a.json").read_text())
    pictures = {f"picture, {name}, 1 cores" for name in ("folder", "packed", "tf.data", "keras", "decode")}
    arrays = {f"array, {kind}, hvdgan, 1 cores" for kind in ("npy", "hdf5", "gzip", "contiguous", "packed")}
    assert pictures | arrays | {"array, packed, bare, 1 cores", "array, npy, generator, 1 cores"} <= found.keys()
    assert all(rate > 0 for rates in found.values() for each in rates for rate in each)
    assert done.stdout.count("\n") == 2 + len(found)
