"""One small measurement of hvdgan.bench with all that it can write, for the tests of its figures."""

import sys
from pathlib import Path

import pytest

from launching import run
from made_once import made_once

TINY = ["--recipe", "dcgan", "--image-size", "32", "--nf", "2", "--data", "synthetic"]
SMALL = ["--ranks", "1,2", "--local-batch-size", "4", "--steps", "2", "--repeats", "1", "--scaling", "weak"]


def benched(factory: pytest.TempPathFactory) -> Path:
    """The folder with bench.json, line.json, and out.txt: what the command has printed."""
    return made_once(factory, "bench", _bench)


def _bench(folder: Path) -> None:
    files = ["--json", "bench.json", "--trace", "line.json"]
    command = [sys.executable, "-m", "hvdgan.bench", *TINY, *SMALL, "--controller", "gloo", *files]
    done = run(command, folder, forked=True)
    assert done.returncode == 0, done.stderr
    (folder / "out.txt").write_text(done.stdout)
