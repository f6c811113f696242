"""Runs a launcher: passes signals on to its ranks, shows their lines without tags, finds the exit code of a failure."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from hvdgan.errors import UserError
from hvdgan.launching.launched import stopped_early
from hvdgan.launching.starters import Starter

_LINE = re.compile(rb"[^\r\n]*[\r\n]")
_EXIT_CODE = re.compile(rb"(?:Exit code: *|Exited with exit code |exit with status code )(-?\d+)\.?$", re.M)
_ERROR = re.compile(rb"hvdgan: rank (\d+): (.*)", re.S)
# What Horovod prints on other ranks when one has failed.
_ECHO = re.compile(rb".*Horovod background loop uncaught exception")
# What horovodrun prints at the end of any run that has failed, and TensorFlow, which it loads, in any run.
_NOISE = re.compile(
    rb"Process (\d+ exit with status|name: )|Exit code: |Terminating remaining|"
    rb".*(before absl::InitializeLog\(\) is called|oneDNN custom operations are on)"
)
_RULE = re.compile(rb"-{60,}\s*$")  # the first line of Open MPI's notices
# What a shell, Gloo and Open MPI say when hosts differ or cannot meet, and what to do (horovod#1341, #2431, #2043).
_CAUSES = {
    rb"Unable to find address for: (\S+)": "{}: a host has no such network interface with an address; name one that "
    "all hosts have by --interface or HOROVOD_GLOO_IFACE",
    rb"cd: (?=can't cd|.*: No such file)(?:can't cd to )?([^:\n]+)": "{}: a host does not have this folder; "
    "mount its file system on all hosts",
    rb"(\S*python\S*): (?:not found|No such file or directory)": "{}: a host does not have this Python; take one on a "
    "file system that all hosts mount",
    rb"(unable to complete a TCP connection|failed to TCP connect to a peer|NoValidAddressesFound)": "the hosts cannot "
    "connect to each other ({}): open the ports between them, or name the network that they share by --interface",
}
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class Supervised:
    """A launcher that runs: its signals, and what its ranks print.

    `is_job`: this is the script of a Slurm job, in which srun passes signals on and a second one changes nothing.
    """

    def __init__(self, starter: Starter, module: str, *, is_job: bool) -> None:
        self._starter = starter
        self._module = module
        self._is_job = is_job
        self._process: subprocess.Popen[bytes] | None = None
        self._signals: list[int] = []
        self._said = Said()

    @property
    def ended_by_slurm(self) -> bool:
        """Whether a SIGTERM has come: from scancel, from preemption or from scontrol requeue."""
        return signal.SIGTERM in self._signals

    @property
    def why_stopped(self) -> str:
        """The line in which a rank has said why it stopped; empty: none has."""
        return self._said.why_stopped.decode(errors="replace")

    def wait(self, command: list[str]) -> int:
        """Run the launcher to its end, and return the exit code of the first rank that failed."""
        # The handlers come first: a signal must not end this process and leave the launcher running.
        before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        try:
            # A session of its own: Ctrl-C in the terminal must reach this process alone.
            self._process = subprocess.Popen(
                command,
                env=self._starter.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            if self._signals:
                self._pass_on()
            assert self._process.stdout is not None and self._process.stderr is not None
            copies = [
                threading.Thread(target=self._copy, args=pair, daemon=True)
                for pair in ((self._process.stdout, sys.stdout.buffer), (self._process.stderr, sys.stderr.buffer))
            ]
            for each in copies:
                each.start()
            code = self._process.wait()
            for each in copies:
                each.join(10)  # a process that the launcher has left behind may keep its streams open
        except OSError as error:
            raise UserError(f"{command[0]}: cannot be started: {error.strerror}") from error
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if code and (cause := self._said.cause):
            print(f"hvdgan: {cause}", file=sys.stderr, flush=True)
        # horovodrun makes 1 of any exit code of its ranks, and srun 137, because it kills the last one.
        code = code and (self._said.code or code)
        if self._signals and not self._said.code and code not in (0, 75):
            return self._stopped_early()
        return code if code >= 0 else 128 - code

    def _stopped_early(self) -> int:
        """The exit code, and a line, of what was asked to stop before there were ranks that could save."""
        first, *others = map(signal.Signals, self._signals)
        if not self.why_stopped:
            line = stopped_early(first)
            self._said.note(line.encode())
            print(line, file=sys.stderr, flush=True)
        # A second signal is of someone who does not want the run to be resumed.
        return 128 + first if others or first == signal.SIGINT else 75

    def _copy(self, stream: IO[bytes], out: IO[bytes]) -> None:
        lines = Lines(self._said, self._starter.after_tag.encode(), has_tags=self._starter.words[0] != "srun")
        while read := os.read(stream.fileno(), 65536):
            self._write(out, b"".join(lines.feed(read)))
        self._write(out, b"".join(lines.rest()))

    def _write(self, out: IO[bytes], text: bytes) -> None:
        with contextlib.suppress(OSError):  # a closed terminal or a full disk does not end the run
            out.write(text)
            out.flush()

    def _on_signal(self, number: int, _: object) -> None:
        self._signals.append(number)
        if self._process is not None:
            self._pass_on()

    def _pass_on(self) -> None:
        """Ask the ranks to save and stop, who tell those on other hosts; a second signal ends the launcher.

        horovodrun gets no first signal: it would kill the ranks 5 seconds after a SIGTERM, and die of a SIGUSR2.
        """
        assert self._process is not None
        if len(self._signals) > 1 and not self._is_job:
            asked = []
        elif self._starter.words[0] == "srun":
            asked = [self._process.pid]
        else:
            asked = [pid for pid in _descendants(self._process.pid) if _words(pid)[1:3] == ["-m", self._module]]
        for pid in asked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR2)
        if not asked:
            self._process.terminate()


def _descendants(pid: int) -> Iterator[int]:
    """The processes below one, started by any of its threads."""
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, path.read_text().split()):
                yield child
                yield from _descendants(child)


def _words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return []


class Said:
    """What the lines of the ranks and of their launcher say about the end."""

    code = 0
    why_stopped = b""
    explains_end = False
    cause = ""

    def __init__(self) -> None:
        self.errors: set[bytes] = set()

    def note(self, line: bytes) -> None:
        if (found := _EXIT_CODE.search(line)) and not self.code:
            self.code = int(found[1]) % 256 if int(found[1]) >= 0 else 128 - int(found[1])
        if re.search(rb"stopped (after step .* and saved|before the first step)", line):
            self.why_stopped = line
        self.explains_end |= bool(self.why_stopped or (_ERROR.match(line) and b" continue" not in line))
        for words, cause in _CAUSES.items() if not self.cause else ():
            if found := re.search(words, line):
                self.cause = cause.format(found[1].decode(errors="replace"))
                break


class Lines:
    """The lines of all ranks, of which some have not ended yet: rank 0's bare, those of rank 1 as `rank 1: ...`.

    horovodrun tags what a rank writes with `[1]<stderr>:`, mpirun with `[1,1]<stderr>:`. Open MPI and MPICH tag each
    piece that they read, also in the middle of a line, and the pieces of two ranks may follow each other there. So each
    rank's line is put together, and is shown when it ends, with a line feed or the carriage return of a progress bar.
    What has no tag is the launcher's own; srun tags nothing, so there it may be a rank's. The launcher's own is shown,
    except for horovodrun's traceback of a failed rank, and for what Open MPI adds once a rank has said why it ends.
    """

    def __init__(self, said: Said, after_tag: bytes = b"", *, has_tags: bool = True) -> None:
        self._said, self._has_tags = said, has_tags
        self._tag = re.compile(rb"\[(?:\d+,)?(\d+)\]<std(?:out|err)>:" + re.escape(after_tag))
        self._unread = b""
        self._begun: dict[bytes, bytes] = {}
        self._echoes: list[bytes] = []
        self._traceback, self._is_notice = b"", False

    def feed(self, read: bytes) -> Iterator[bytes]:
        """Yield the lines that end in what was read, as they are to be shown."""
        self._unread += read
        end = 0
        for found in _LINE.finditer(self._unread):
            end = found.end()
            yield from self._complete(found[0])
        self._unread = self._unread[end:]

    def rest(self) -> Iterator[bytes]:
        """Yield what has no end of a line; there is nothing more to read."""
        if self._unread:
            yield from self._complete(self._unread)
        yield from (self._shown(rank, text) for rank, text in self._begun.items() if text)
        yield self._traceback
        yield from () if self._said.explains_end else self._echoes

    def _complete(self, line: bytes) -> Iterator[bytes]:
        """Share a line of the launcher among the ranks whose tags it has, and yield the lines that it ends."""
        # split() gives what precedes the first tag, then the rank and the text of each tag.
        first, *others = self._tag.split(line)
        for rank, text in [(b"", first), *zip(others[::2], others[1::2], strict=True)]:
            self._begun[rank] = self._begun.get(rank, b"") + text
            if text.endswith((b"\n", b"\r")):
                yield self._shown(rank, self._begun.pop(rank))

    def _shown(self, rank: bytes, line: bytes) -> bytes:
        self._said.note(line)
        error = _ERROR.match(line)
        if error and rank in (b"", error[1]):  # it names the rank itself; what another one has said is not repeated
            known = error[2] in self._said.errors
            self._said.errors.add(error[2])
            return b"" if known else line
        if self._said.explains_end and not line.strip():
            return b""
        if _ECHO.match(line):
            self._echoes.append(line)  # until the end: the error of the rank that has failed may follow
            return b""
        if rank == b"" and self._has_tags:
            return self._launchers(line)
        if rank in (b"", b"0"):
            return line
        return b"rank " + rank + b": " + line if line.strip() else b""

    def _launchers(self, line: bytes) -> bytes:
        """What is shown of a line without a tag; a traceback waits for its last line, which decides."""
        before, self._traceback = self._traceback, b""
        if line.startswith(b"Traceback (most recent") or (before and line.startswith(b" ")):
            self._traceback = before + line
            return b""
        self._is_notice |= bool(self._said.explains_end and _RULE.match(line))
        if self._is_notice or line.startswith(b"RuntimeError: Horovod detected that"):
            return b""
        return before + (b"" if _NOISE.match(line) else line)
