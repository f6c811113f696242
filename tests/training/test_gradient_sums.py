"""Sums of three gradients have the same bits in every run. Modules: training.gradient_sums"""

import sys

from launching import ROOT, run


def test_a_step_of_parallel_branches_has_one_result(tmp_path):
    """On four threads; without the fixed order 40 steps had seven results."""
    script = [sys.executable, ROOT / "tests" / "support" / "branches.py", "40"]
    done = run(script, tmp_path, TF_NUM_INTEROP_THREADS="4", TF_NUM_INTRAOP_THREADS="2")
    assert done.stdout.split() == ["1"], done.stdout + done.stderr
