"""Programs that run in turns: one short round, and no process is left afterwards."""

import importlib
import sys

import psutil
import pytest

from launching import HAS_MPI, ROOT, run

SHORT = [sys.executable, ROOT / "benchmarks" / "peers" / "turns.py", *"--rounds 1 --seconds 3 --digits".split()]


@pytest.mark.long
def test_programs_take_turns_and_are_gone_afterwards(tmp_path):
    chosen = ["lockstep", "small-gloo", *(["mpi"] if HAS_MPI else ["gloo"])]
    done = run([*SHORT, "--only", *chosen], tmp_path)
    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()[2:]]
    assert [name for name, *_ in rows] == chosen
    assert all(float(rate.split()[0].replace(",", "")) > 0 for _, rate, _ in rows)
    assert not [process for process in psutil.process_iter(["cmdline"]) if "turns_rank.py" in str(process.info)]


@pytest.mark.parametrize("why", ["Horovod was built without MPI", "there is no mpirun on the PATH"])
def test_programs_over_mpi_are_refused_by_name_where_there_is_none(monkeypatch, capsys, why):
    monkeypatch.syspath_prepend(SHORT[1].parent)
    turns = importlib.import_module("turns")
    monkeypatch.setattr(turns, "missing_mpi", lambda: why)
    monkeypatch.setattr(sys, "argv", [*map(str, SHORT[1:]), "--only", "gloo", "mpi", "small-mpi"])
    with pytest.raises(SystemExit) as refused:
        turns.main()
    assert refused.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == (f"turns.py: error: --only mpi small-mpi: {why}; leave it out")
