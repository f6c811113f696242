"""Only one process at a time writes into a folder, with every kind of lock that a file system may have."""

import contextlib
import errno
import fcntl
import os
import sys

import pytest

from hvdgan.diagnostics.folders import check_run_folder
from hvdgan.errors import UserError
from hvdgan.files.lock import lock
from hvdgan.train import main
from launching import SECONDS, started, wait_until

TINY = "--recipe tiny:Tiny --image-size 8 --global-batch-size 8 --steps 2 --run-dir".split()
# Holds a folder's lock until it is killed; its words may be those of another host.
HOLD = """
import errno, fcntl, signal, sys
from pathlib import Path
from hvdgan.files.lock import lock
def none(*_):
    raise OSError(errno.ENOSYS, "Function not implemented")
if sys.argv[3:]:
    fcntl.flock = none
held = lock(Path(sys.argv[1]))
if sys.argv[2]:
    (Path(sys.argv[1]) / ".lock").write_text(sys.argv[2])
print("held", flush=True)
signal.pause()
"""


def says(folder, words):
    said = (folder / "said").read_text
    wait_until(lambda: words in said(), SECONDS, said)
    return said()


@contextlib.contextmanager
def held(folder, *words):
    """Another process that holds the lock of folder / run."""
    with started([sys.executable, "-c", HOLD, folder / "run", *words], folder) as process:
        says(folder, "held")
        yield process


def fail(monkeypatch, number, *functions):
    """Let functions of fcntl end with an error."""

    def failing(*_):
        raise OSError(number, os.strerror(number))

    for name in functions:
        monkeypatch.setattr(fcntl, name, failing)


def test_a_run_waits_for_the_lock_of_a_process_that_may_be_gone_and_says_so_at_once(tmp_path):
    assert main([*TINY, str(tmp_path / "run"), "--max-steps", "1"]) == 0
    (tmp_path / "waiting").mkdir()
    command = [sys.executable, "-m", "hvdgan.train", *TINY, tmp_path / "run"]
    with held(tmp_path, "host lost-node, pid 7\n") as process, started(command, tmp_path / "waiting") as waiting:
        said = says(tmp_path / "waiting", "waiting up to 120 s for its lock")
        assert f"--run-dir {tmp_path / 'run'}: " in said and "host lost-node, pid 7" in said
        process.kill()  # as when a file system gives up a host
        assert waiting.wait(timeout=SECONDS) == 0, said
    assert "waited for the lock of" in (tmp_path / "run" / "log.txt").read_text()


def test_a_living_process_of_this_host_is_named_at_once(tmp_path, capsys):
    assert main([*TINY, str(tmp_path / "run"), "--max-steps", "1"]) == 0
    with held(tmp_path, "") as process:
        capsys.readouterr()
        assert main([*TINY, str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and f"(host {os.uname().nodename}, pid {process.pid})" in error


def test_without_flock_another_kind_of_lock_keeps_others_out_and_the_log_says_so(tmp_path, monkeypatch):
    fail(monkeypatch, errno.ENOSYS, "flock")
    run_dir = tmp_path / "run"
    assert main([*TINY, str(run_dir), "--max-steps", "1"]) == 0
    said = f"warning: {run_dir}: flock is not there (Function not implemented); fcntl"
    assert said in (run_dir / "log.txt").read_text()
    with held(tmp_path, "", "no flock") as process, pytest.raises(UserError, match=f"another run .*pid {process.pid}"):
        lock(run_dir)
    lock(run_dir).close()  # that of a process that was killed


def test_without_any_lock_training_continues_with_a_warning(tmp_path, monkeypatch):
    fail(monkeypatch, errno.ENOLCK, "flock", "lockf")
    assert main([*TINY, str(tmp_path / "run")]) == 0
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "warning: " in log and "never train twice into one folder" in log
    row = check_run_folder(tmp_path)  # the doctor's
    assert row.verdict == "warn" and "never start two runs" in row.hint
