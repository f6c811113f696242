"""Starts the tests of tests/parallel on two ranks, under each controller that is there."""

import sys

import pytest

from launching import CONTROLLERS, ROOT, launcher, run


@pytest.mark.parametrize("controller", CONTROLLERS)
def test_two_ranks(controller):
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "--color=no",
        "-p",
        "no:cacheprovider",
        ROOT / "tests" / "parallel",
    ]
    done = run([*launcher(2, controller), *command], cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" passed") == 2, done.stdout
