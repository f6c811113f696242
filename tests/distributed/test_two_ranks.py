"""Starts the tests of tests/parallel on two ranks, under each controller that Horovod was built with."""

import shlex
import sys

import pytest

from launching import CONTROLLERS, ROOT, launcher, run

FOLDER = ROOT / "tests" / "parallel"


def run_on_two_ranks(controller, *chosen, seconds=1500):
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--color=no", "-p", "no:cacheprovider", *chosen]
    done = run([*launcher(2, controller), *command], cwd=ROOT, seconds=seconds)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" passed") == 2, done.stdout


CORE = [FOLDER / f"test_{name}.py" for name in ("collectives", "reduction")]


@pytest.mark.core
@pytest.mark.timeout(1600)
def test_two_ranks():
    """Ownership, the gradient of the whole batch and its bytes, BatchNorm, and collectives."""
    run_on_two_ranks(CONTROLLERS[-1], *CORE)


@pytest.mark.timeout(1600)
def test_data_recipes_and_errors():
    run_on_two_ranks(CONTROLLERS[-1], FOLDER, *(f"--ignore={file}" for file in CORE))


@pytest.mark.long
@pytest.mark.timeout(1600)
@pytest.mark.skipif(len(CONTROLLERS) == 1, reason="Horovod has one controller here")
def test_the_other_controller():
    """Gloo and MPI reduce, gather and fail in code of their own."""
    run_on_two_ranks(CONTROLLERS[0], *CORE, FOLDER / "test_guards.py")


@pytest.mark.long
@pytest.mark.timeout(1900)
@pytest.mark.parametrize(
    ("names", "words"),
    [
        ("recipes", "-k what_it_owns"),
        ("recipes", "-k 'not what_it_owns'"),
        ("keras", ""),
        ("reduction whole_batch opening", ""),
    ],
)
def test_the_further_cases(names, words):
    files = [FOLDER / f"test_{name}.py" for name in names.split()]
    run_on_two_ranks(CONTROLLERS[-1], *files, "-m", "long", *shlex.split(words), seconds=1800)
