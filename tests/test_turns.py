"""Programs that take turns: a short round, and nothing left of them afterwards."""

import sys

import psutil

from launching import ROOT, run


def test_programs_take_turns_and_are_gone_afterwards(tmp_path):
    flags = "--rounds 1 --seconds 3 --digits --only lockstep small-gloo mpi"
    done = run([sys.executable, ROOT / "benchmarks" / "peers" / "turns.py", *flags.split()], tmp_path)
    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()[2:]]
    assert [name for name, *_ in rows] == ["lockstep", "small-gloo", "mpi"]
    assert all(float(rate.split()[0].replace(",", "")) > 0 for _, rate, _ in rows)
    assert not [process for process in psutil.process_iter(["cmdline"]) if "turns_rank.py" in str(process.info)]
