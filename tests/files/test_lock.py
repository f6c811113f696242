"""Only one process at a time writes into a folder, with every kind of lock that a file system may have."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading

import pytest

from hvdgan.diagnostics.folders import check_run_folder
from hvdgan.errors import UserError
from hvdgan.files.lock import lock
from hvdgan.train import main
from launching import environment

TINY = "--recipe tiny:Tiny --image-size 8 --global-batch-size 8 --steps 2 --run-dir".split()
SECONDS = 120
# Holds a folder's lock until it is killed; its words may be those of another host.
HOLD = """
import fcntl, sys
from pathlib import Path
from hvdgan.files.lock import lock
if sys.argv[3] == "no flock":
    import errno
    def flock(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")
    fcntl.flock = flock
held = lock(Path(sys.argv[1]))
if sys.argv[2]:
    (Path(sys.argv[1]) / ".lock").write_text(sys.argv[2])
print("held", flush=True)
sys.stdin.read()
"""


def python(*words, **more):
    return subprocess.Popen(
        [sys.executable, *map(str, words)],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **more,
    )


def fail(monkeypatch, number, *functions):
    """Let functions of fcntl end with an error."""

    def failing(*_):
        raise OSError(number, os.strerror(number))

    for name in functions:
        monkeypatch.setattr(fcntl, name, failing)


@pytest.fixture
def holder(tmp_path):
    """Starts a process that holds the lock of tmp_path / run."""
    started = []

    def hold(says="", kind="flock"):
        process = python("-c", HOLD, tmp_path / "run", says, kind)
        started.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield hold
    for process in started:
        process.kill()
        process.communicate(timeout=SECONDS)


def until(process, words):
    """Read what a process says up to a line with these words; a bound ends it."""
    bound = threading.Timer(SECONDS, process.kill)
    bound.start()
    said = ""
    for line in process.stdout:
        said += line
        if words in line:
            bound.cancel()
            return said
    raise AssertionError(said)


def test_a_run_waits_for_the_lock_of_a_process_that_may_be_gone_and_says_so_at_once(tmp_path, holder):
    assert main([*TINY, str(tmp_path / "run"), "--max-steps", "1"]) == 0
    process = holder("host lost-node, pid 7\n")
    waiting = python("-m", "hvdgan.train", *TINY, tmp_path / "run")
    said = until(waiting, "waiting up to 120 s for its lock")
    assert f"--run-dir {tmp_path / 'run'}: " in said and "host lost-node, pid 7" in said
    process.kill()  # as when a file system gives up a host
    said, _ = waiting.communicate(timeout=SECONDS)
    assert waiting.returncode == 0, said
    assert "waited for the lock of" in (tmp_path / "run" / "log.txt").read_text()


def test_a_living_process_of_this_host_is_named_at_once(tmp_path, holder, capsys):
    assert main([*TINY, str(tmp_path / "run"), "--max-steps", "1"]) == 0
    process = holder()
    capsys.readouterr()
    assert main([*TINY, str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and f"(host {os.uname().nodename}, pid {process.pid})" in error


def test_without_flock_another_kind_of_lock_keeps_others_out_and_the_log_says_so(tmp_path, holder, monkeypatch):
    fail(monkeypatch, errno.ENOSYS, "flock")
    run_dir = tmp_path / "run"
    assert main([*TINY, str(run_dir), "--max-steps", "1"]) == 0
    assert (
        f"warning: {run_dir}: flock is not there (Function not implemented); fcntl" in (run_dir / "log.txt").read_text()
    )
    process = holder(kind="no flock")
    with pytest.raises(UserError, match=f"another run writes into it .*pid {process.pid}"):
        lock(run_dir)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=SECONDS)
    lock(run_dir).close()


def test_without_any_lock_training_continues_with_a_warning(tmp_path, monkeypatch):
    fail(monkeypatch, errno.ENOLCK, "flock", "lockf")
    assert main([*TINY, str(tmp_path / "run")]) == 0
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "warning: " in log and "never train twice into one folder" in log
    row = check_run_folder(tmp_path)  # the doctor's
    assert row.verdict == "warn" and "never start two runs" in row.hint
