"""The benchmark of the loop's periodic work, shortened: it runs, and its parts add up to the total."""

import re
import sys

import pytest

from launching import ROOT, run

PERIODS = ROOT / "benchmarks" / "periods.py"


@pytest.mark.long
def test_the_parts_are_measured_and_add_up(tmp_path):
    flags = (
        "--recipe tiny:Tiny --image-size 8 --global-batch-size 4 --log-every 1 --sample-every 10 --checkpoint-every 10"
    )
    command = [sys.executable, PERIODS, *flags.split(), "--run-dir", "run", "--max-steps", "20"]
    done = run(command, tmp_path)
    lines = re.findall(r"(?m)^(\w.*): ([\d.]+) s, ([\d.]+)% of ([\d.]+) s$", done.stdout)
    assert [name.split()[0].strip(",") for name, *_ in lines] == ["logging", "sampling", "writing", "together"], (
        done.stderr
    )
    *parts, together = [float(seconds) for _, seconds, *_ in lines]
    assert all(part > 0 for part in parts) and abs(sum(parts) - together) < 0.003
    # Every step is logged here: the goal, of the default periods, is out of reach.
    assert done.returncode == 1 and "goal: under 2%: MISSED" in done.stdout
    again = run(command, tmp_path)
    assert again.returncode == 0 and again.stdout.splitlines()[-1].startswith("nothing was measured"), again.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_mistake_is_the_trainers_own(tmp_path):
    done = run([sys.executable, PERIODS, "--max-step", "20"], tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "--max-step" in done.stderr
