"""The benchmark of the input, shortened: it runs, and compares the results with the goals."""

import json
import sys

import pytest

from launching import ROOT, run


@pytest.mark.long
def test_the_benchmark_in_short(tmp_path):
    flags = "--images 70 --rounds 1 --seconds 0.1 --cores 1 --contenders packed tf.data decode-files --steps 0"
    command = [sys.executable, ROOT / "benchmarks" / "input.py", *flags.split(), "--records", "0", "--json", "a.json"]
    done = run(command, tmp_path)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "a.json").read_text())
    assert set(results["images_per_sec, 1 cores"]) == {"packed", "tf.data", "decode-files"}
    assert all(rate > 0 for (rate,) in results["images_per_sec, 1 cores"].values())
    assert len(results["verdicts"]) == 1
    assert "| packed files | " in done.stdout and "(goal 1.5)" in done.stdout
