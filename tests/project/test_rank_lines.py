"""launch/rank_lines.py, through which the launch scripts show what ranks say."""

import os
import signal
import subprocess
import sys

import pytest

from launching import ROOT

COMMAND = [sys.executable, "-IS", ROOT / "launch" / "rank_lines.py"]


@pytest.fixture
def copying():
    """A process that copies; its pipes are not buffered."""
    with subprocess.Popen(
        COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    ) as p:
        yield p
        p.kill()


@pytest.mark.parametrize(
    ("read", "shown"),
    [
        # Gloo and Open MPI, and what horovodrun itself says.
        ("[0]<stderr>:step 1\n[1]<stderr>:lost\n[12]<stdout>:x\n", "step 1\nrank 1: lost\nrank 12: x\n"),
        ("[1,0]<stdout>:step 1\n[1,1]<stderr>:lost\n", "step 1\nrank 1: lost\n"),
        ("Exit code: 75\n[0] of what?\n<stderr>:\n", "Exit code: 75\n[0] of what?\n<stderr>:\n"),
        # Open MPI tags each piece of a line, between which another rank may speak.
        ("[1,0]<stderr>:step 1[1,0]<stderr>:\n", "step 1\n"),
        ("[1,0]<stderr>:step[1,1]<stderr>:lost\n[1,0]<stderr>: 1\n", "rank 1: lost\nstep 1\n"),
        # A progress bar, and a line that ends with both.
        ("[0]<stderr>: 10%\r[0]<stderr>: 20%\r[0]<stderr>:\n", " 10%\r 20%\r\n"),
        ("[1]<stderr>: 10%\r[1]<stderr>:\n", "rank 1:  10%\r"),
        # What another rank leaves empty is not shown; rank 0's lines stay as they are.
        ("[1]<stdout>:\n[0]<stdout>:\n[1]<stdout>:  \n", "\n"),
        # An error that names its rank, and one that names another.
        ("[1]<stderr>:hvdgan: rank 1: no data\n", "hvdgan: rank 1: no data\n"),
        ("[1]<stderr>:hvdgan: rank 12 is lost\n", "rank 1: hvdgan: rank 12 is lost\n"),
        # What never ends.
        ("[0]<stderr>:half", "half"),
        ("[1]<stderr>:half[0]<stderr>:step 1\nhorovodrun", "step 1\nhorovodrunrank 1: half"),
        ("", ""),
    ],
)
def test_lines_of_ranks(read, shown):
    done = subprocess.run(COMMAND, input=read.encode(), capture_output=True, timeout=60)
    assert (done.stdout.decode(), done.stderr, done.returncode) == (shown, b"", 0)


def test_what_follows_each_tag_is_not_shown():
    """Open MPI 5 adds a space; without it a tag would be none."""
    read = b"[1,0]<stderr>:  5%\r[1,1]<stderr>: lost\n[1,0]<stderr>:x\n"
    done = subprocess.run([*COMMAND, " "], input=read, capture_output=True, timeout=60)
    assert done.stdout == b" 5%\rrank 1: lost\n[1,0]<stderr>:x\n"


def test_what_horovodruns_own_tensorflow_prints_is_dropped_unless_it_is_wanted():
    news = "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
    news += "I0000 00:00:1 port.cc:153] oneDNN custom operations are on. You may see\n"
    for level, shown in (("2", "Exit code: 1\n"), ("0", f"{news}Exit code: 1\n")):
        env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": level}
        read = f"{news}Exit code: 1\n"
        assert subprocess.run(COMMAND, input=read, env=env, capture_output=True, text=True).stdout == shown


def test_each_line_is_shown_at_once_and_as_it_was(copying):
    """A letter, a tag and a byte that is no text are cut by the reads."""
    for parts, shown in (
        ([b"[0]<std", b"err>:\xc3", b"\xa9t\xc3\xa9\n"], "été\n".encode()),
        ([b"[", b"1]<stderr>:\xff\xfe", b"\r"], b"rank 1: \xff\xfe\r"),
    ):
        for part in parts:
            copying.stdin.write(part)
        assert os.read(copying.stdout.fileno(), 100) == shown


def test_a_closed_terminal_ends_it_without_a_traceback(copying):
    copying.stdout.close()
    copying.stdin.write(b"[0]<stderr>:for a terminal that is closed\n")
    assert copying.wait(timeout=60) == -signal.SIGPIPE and copying.stderr.read() == b""
