"""Starts the tests of tests/parallel on two ranks, under each controller that Horovod was built with."""

import sys

import pytest

from launching import CONTROLLERS, ROOT, launcher, run

FOLDER = ROOT / "tests" / "parallel"
RECIPES = FOLDER / "test_recipes.py"


def run_on_two_ranks(controller, *chosen):
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--color=no", "-p", "no:cacheprovider", *chosen]
    done = run([*launcher(2, controller), *command], cwd=ROOT, seconds=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" passed") == 2, done.stdout


@pytest.mark.timeout(1000)
@pytest.mark.parametrize("controller", CONTROLLERS)
def test_two_ranks(controller):
    run_on_two_ranks(controller, FOLDER, f"--ignore={RECIPES}")


# Once: which controller is below makes no difference to a recipe.
@pytest.mark.timeout(1000)
def test_the_recipes():
    run_on_two_ranks(CONTROLLERS[-1], RECIPES)
