"""Programs that take turns: a short round, and nothing left of them afterwards."""

import sys

import psutil
import pytest

from launching import HAS_MPI, ROOT, run

SHORT = [sys.executable, ROOT / "benchmarks" / "peers" / "turns.py", *"--rounds 1 --seconds 3 --digits".split()]


def test_programs_take_turns_and_are_gone_afterwards(tmp_path):
    chosen = ["lockstep", "small-gloo", *(["mpi"] if HAS_MPI else ["gloo"])]
    done = run([*SHORT, "--only", *chosen], tmp_path)
    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()[2:]]
    assert [name for name, *_ in rows] == chosen
    assert all(float(rate.split()[0].replace(",", "")) > 0 for _, rate, _ in rows)
    assert not [process for process in psutil.process_iter(["cmdline"]) if "turns_rank.py" in str(process.info)]


@pytest.mark.skipif(HAS_MPI, reason="there is MPI here")
def test_programs_over_mpi_are_refused_by_name_where_there_is_none(tmp_path):
    done = run([*SHORT, "--only", "gloo", "mpi", "small-mpi"], tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(
        "turns.py: error: --only mpi small-mpi: Horovod was built without MPI"
    )
