"""The lines of the ranks as hvdgan launch shows them; tests/commands/test_launch.py has signals and exit codes."""

import pytest

from hvdgan.launching.supervision import Lines, Said

RULE = f"{74 * '-'}\n"
NOTICE = f"{RULE}mpirun noticed that process rank 1 exited on signal 9\n{RULE}"
ECHO = "[x: E] Horovod background loop uncaught exception: closed\n"


def shown(*parts, after_tag=b""):
    """What is shown of what is read in parts, part by part, then of what has no end."""
    lines = Lines(Said(), after_tag)
    return [*(b"".join(lines.feed(part)) for part in parts), b"".join(lines.rest())]


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        # Gloo and Open MPI, and what horovodrun itself says.
        ("[0]<stderr>:step 1\n[1]<stderr>:lost\n[12]<stdout>:x\n", "step 1\nrank 1: lost\nrank 12: x\n"),
        ("[1,0]<stdout>:step 1\n[1,1]<stderr>:lost\n", "step 1\nrank 1: lost\n"),
        ("of horovodrun\n[0] of what?\n<stderr>:\n", "of horovodrun\n[0] of what?\n<stderr>:\n"),
        # Open MPI tags each piece of a line, between which another rank may speak.
        ("[1,0]<stderr>:step 1[1,0]<stderr>:\n", "step 1\n"),
        ("[1,0]<stderr>:step[1,1]<stderr>:lost\n[1,0]<stderr>: 1\n", "rank 1: lost\nstep 1\n"),
        # A progress bar, and a line that ends with both.
        ("[0]<stderr>: 10%\r[0]<stderr>: 20%\r[0]<stderr>:\n", " 10%\r 20%\r\n"),
        # What another rank leaves empty is not shown; rank 0's lines stay as they are.
        ("[1]<stdout>:\n[0]<stdout>:\n[1]<stdout>:  \n", "\n"),
        # An error that names its rank, the same of another one, and one about another.
        ("[1]<stderr>:hvdgan: rank 1: no data\n", "hvdgan: rank 1: no data\n"),
        ("[1]<stderr>:hvdgan: rank 1: no\n[0]<stderr>:hvdgan: rank 0: no\n", "hvdgan: rank 1: no\n"),
        ("[1]<stderr>:hvdgan: rank 12 is lost\n", "rank 1: hvdgan: rank 12 is lost\n"),
        # What Horovod adds to it, also before it; without an error it is shown in the end.
        (f"[1]<stderr>:hvdgan: rank 1: no\n[0]<stderr>:{ECHO}", "hvdgan: rank 1: no\n"),
        (f"[0]<stderr>:{ECHO}[1]<stderr>:hvdgan: rank 1: no\n", "hvdgan: rank 1: no\n"),
        # horovodrun's own end of a run that has failed, and an error of its own.
        (
            'Traceback (most recent call last):\n  File "x"\nRuntimeError: Horovod detected that one or more processes '
            "exited with non-zero status\nProcess name: 0\nExit code: 2\n",
            "",
        ),
        *(2 * (text,) for text in ["Traceback (most recent call last):\n  File\nValueError: no ssh\nmore\n"]),
        ("I0000 oneDNN custom operations are on. You may see\n[0]<stderr>:step 1\n", "step 1\n"),
        # What Open MPI adds to an error of a rank, or to its end on request; without them it is shown.
        (f"[1,1]<stderr>:hvdgan: rank 1: no\n{NOTICE}last\n", "hvdgan: rank 1: no\n"),
        (f"[1,0]<stderr>:stopped after step 3 and saved\n{NOTICE}", "stopped after step 3 and saved\n"),
        *(2 * (text,) for text in [f"{NOTICE}last\n", f"hvdgan: rank 0: no heartbeat; the run continues\n{NOTICE}"]),
        # srun tags nothing.
        (
            "hvdgan: rank 1: no\nhvdgan: rank 0: no\nhvdgan: rank 2: other\n",
            "hvdgan: rank 1: no\nhvdgan: rank 2: other\n",
        ),
        # What never ends.
        ("[1]<stderr>:half[0]<stderr>:step 1\nhorovodrun", "step 1\nhorovodrunrank 1: half"),
    ],
)
def test_lines_of_ranks(read, expected):
    assert b"".join(shown(read.encode())).decode() == expected


def test_lines_of_srun_are_all_shown():
    """They may be a rank's, also between two rules."""
    text = f"hvdgan: rank 1: no\n{RULE}Exit code: mine\n{RULE}Traceback (most recent call last):\n  File\n".encode()
    assert b"".join(Lines(Said(), has_tags=False).feed(text)) == text


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        # horovod#1341, horovod#2431: the name of an interface
        (
            "  what():  [enforce fail at gloo/tcp/device.cc:83] ifa != nullptr. Unable to find address for: ib7",
            "ib7: a host has no such network interface",
        ),
        ("bash: line 1: cd: /shared/a b: No such file or directory", "/shared/a b: a host does not have this folder"),
        ("bash: line 1: /x/bin/python3: No such file or directory", "/x/bin/python3: a host does not have this Python"),
        # horovod#2043, and what a later Open MPI says
        ("A process or daemon was unable to complete a TCP connection", "the hosts cannot connect to each other ("),
        ("step 1 of 8", ""),
    ],
)
def test_what_launchers_say_when_hosts_are_not_alike_is_told_in_plain_words(line, cause):
    said = Said()
    said.note(line.encode())
    assert said.cause.startswith(cause) and bool(said.cause) == bool(cause)
