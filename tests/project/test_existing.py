"""launch/setup.sh with a TensorFlow and a Horovod that are there already, on fake machines."""

import sys

import pytest

from machines import COMPILER, Machine, kinds


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


EXISTING = """
case "$*" in
    *" find") printf '%s\\n' executable=$0 python=3.11.7 tensorflow=2.19.1 horovod=0.28.1 kinds=MPI 'pth=import os' ;;
    *" constraints "*) echo numpy==2.1.3 ;;
    *) exec "$PLAIN" "$@" ;;
esac
"""


def test_an_existing_horovod_is_taken_and_nothing_is_built(machine):
    machine.has(**{"python": EXISTING})
    plain = {"PLAIN": str(machine.bin / "python3.11")}
    existing = {**plain, "HVDGAN_HOROVOD": "existing"}
    plan, calls = machine.succeeds("--plan", **existing)
    assert "TensorFlow 2.19.1 and Horovod 0.28.1 with MPI, which are there already\n" in plan
    assert "without Gloo: no elastic runs" in plan and calls == []
    machine.lacks("g++", "make")
    output, calls = machine.succeeds(**existing)
    assert kinds(calls) == ["venv", "packages", "check", "hvdgan"]
    assert calls[2] == "verify MPI"
    assert f"-c {machine.checkout}/.venv/constraints.txt" in calls[1] and "tensorflow" not in calls[1]
    assert (machine.checkout / ".venv" / "constraints.txt").read_text() == "numpy==2.1.3\n"
    output, calls = machine.succeeds(**plain)
    assert calls == [] and "TensorFlow 2.19.1 and Horovod 0.28.1 with MPI" in output
    machine.has(**COMPILER)
    assert kinds(machine.succeeds(**plain, HVDGAN_HOROVOD="build")[1])[0] == "venv"


def test_an_existing_horovod_that_is_not_there_is_one_line(machine):
    """By the real Python of these tests, without their packages."""
    machine.has(bare=f"exec '{sys.executable}' -I -S \"$@\"")
    line = machine.fails(HVDGAN_HOROVOD="existing", PYTHON="bare")
    assert line.startswith("setup: HVDGAN_HOROVOD=existing: bare: TensorFlow cannot be imported (")
    assert "load the module or activate the environment that has it" in line
    assert "there is no /nowhere/python" in machine.fails(HVDGAN_HOROVOD="existing", PYTHON="/nowhere/python")
    assert "HVDGAN_HOROVOD=mine: expected existing or build" in machine.fails(HVDGAN_HOROVOD="mine")
    both = machine.fails(HVDGAN_HOROVOD="existing", HVDGAN_TF="2.18")
    assert "HVDGAN_TF=2.18: HVDGAN_HOROVOD=existing takes the TensorFlow that is there" in both
