"""The benchmark of the formulas compares with the packages that are installed, here SciPy, and names the others."""

import re
import sys

import pytest

from launching import ROOT, run


@pytest.mark.long
def test_the_benchmark_without_pytorch(tmp_path):
    command = [sys.executable, ROOT / "benchmarks" / "metrics.py", *"--samples 40 --dimensions 12".split()]
    done = run(command, tmp_path)
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^\| (.+) \| [\d.e-]+ \| scipy [\d.]+ \| [\d.e-]+ \| ([\d.e-]+) \|$", done.stdout, re.MULTILINE)
    assert {name for name, _ in rows} == {"sliced Wasserstein distance", "histogram distance"}
    assert all(float(difference) < 1e-9 for _, difference in rows)
    assert re.search("not installed: torch-fidelity, .*scoringrules$", done.stdout, re.MULTILINE)
    assert "(goal: 1e-05: reached)" in done.stdout
