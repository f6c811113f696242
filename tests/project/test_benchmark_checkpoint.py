"""The benchmark of saving, shortened: it saves, and compares the result with the goal."""

import re
import sys

import pytest

from launching import ROOT, run


@pytest.mark.long
def test_the_benchmark_in_short(tmp_path):
    flags = "--nf 2 --image-size 32 --global-batch-size 2 --saves 2 --steps 3 --folder"
    done = run([sys.executable, ROOT / "benchmarks" / "checkpoint.py", *flags.split(), tmp_path / "saved"], tmp_path)
    assert done.returncode == 0, done.stderr
    (part, verdict) = re.search(r"stall / step: ([\d.]+) \(goal: under 0.5: (\w+)\)", done.stdout).groups()
    assert verdict == ("reached" if float(part) < 0.5 else "MISSED")
    assert [path.name for path in sorted((tmp_path / "saved/checkpoints").glob("step-*"))] == [
        "step-00000003",
        "step-00000006",
    ]
