"""Copies the output of a launcher from stdin to stdout: rank 0's lines bare, those of rank 1 as `rank 1: ...`.

horovodrun tags what a rank writes with `[1]<stderr>:` over Gloo, and with `[1,1]<stderr>:` over Open MPI; mpirun is
asked by launch/mpirun.sh for tags of these forms. Open MPI and MPICH tag each piece that they read: also in the middle
of a line, and the pieces of two ranks may follow each other there. So each rank's line is put together, and is written
when it ends, with a line feed or with the carriage return of a progress bar. What has no tag is the launcher's own, and
stays as it is, except for what the TensorFlow that horovodrun loads prints before it reads TF_CPP_MIN_LOG_LEVEL: that
is dropped unless the variable is 0, as hvdgan.cli.start does in the ranks.

The argument, if there is one, follows each tag: Open MPI 5 adds a space. It needs only the standard library;
launch/common.sh calls it.
"""

import os
import re
import signal
import sys
from collections.abc import Iterator

_TAG = rb"\[(?:\d+,)?(\d+)\]<std(?:out|err)>:"
_NEWS = re.compile(rb"before absl::InitializeLog\(\) is called|oneDNN custom operations are on")
_LINE = re.compile(rb"[^\r\n]*[\r\n]")


class Lines:
    """The lines of all ranks, of which some have not ended yet.

    Args:
        after_tag: text that follows each tag.
    """

    def __init__(self, after_tag: bytes = b"") -> None:
        self._tag = re.compile(_TAG + re.escape(after_tag))
        self._unread = b""
        self._begun: dict[bytes, bytes] = {}

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
        yield from (_shown(rank, text) for rank, text in self._begun.items() if text)

    def _complete(self, line: bytes) -> Iterator[bytes]:
        """Share a line of the launcher among the ranks whose tags it has, and yield the lines that it ends."""
        # split() gives what precedes the first tag, then the rank and the text of each tag.
        first, *others = self._tag.split(line)
        for rank, text in [(b"", first), *zip(others[::2], others[1::2], strict=True)]:
            self._begun[rank] = self._begun.get(rank, b"") + text
            if text.endswith((b"\n", b"\r")):
                yield _shown(rank, self._begun.pop(rank))


def _shown(rank: bytes, line: bytes) -> bytes:
    if rank == b"":
        return b"" if _NEWS.search(line) and os.environ.get("TF_CPP_MIN_LOG_LEVEL") != "0" else line
    if rank == b"0":
        return line
    if line.startswith(b"hvdgan: rank " + rank + b":"):
        return line  # an error of the trainer's, which names the rank itself
    return b"rank " + rank + b": " + line if line.strip() else b""


def main() -> None:
    """Copy stdin to stdout, line by line."""
    # A closed terminal ends this process, without a traceback.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    lines = Lines(*(os.fsencode(word) for word in sys.argv[1:2]))
    output = sys.stdout.buffer
    while read := os.read(sys.stdin.fileno(), 65536):
        output.writelines(lines.feed(read))
        output.flush()
    output.writelines(lines.rest())
    output.flush()


if __name__ == "__main__":
    main()
