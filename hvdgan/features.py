"""The command python -m hvdgan.features: gets the Inception network of FID, on a machine with internet."""

from hvdgan.cli import start

start.begin(__name__)

import dataclasses
import gzip
import hashlib
import http.client
import sys
import tarfile
import urllib.parse
import urllib.request
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from hvdgan.cli.app import command
from hvdgan.errors import RunError, UserError, in_one_line
from hvdgan.files import outputs
from hvdgan.settings.evaluation import INCEPTION_BYTES, INCEPTION_MD5

_HELP = """Get the network of FID: the frozen graph classify_image_graph_def.pb of the archive inception-2015-12-05.tgz.

Run `python -m hvdgan.features fetch` on a machine with internet, such as a login node; jobs never download. Nothing
else of the archive is unpacked. The SHA-256 of the file is printed and written next to it."""
URL = "https://storage.googleapis.com/download.tensorflow.org/models/image/imagenet/inception-2015-12-05.tgz"
"""the address in TensorFlow's own documentation of its graph transforms; FID's first programs name the same file"""
MEMBER = "classify_image_graph_def.pb"
_BLOCK = 1 << 20
_SECONDS = 60


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """Where to write what; the fields are the flags."""

    out: Path = Path(MEMBER)
    """file to write"""
    url: str = URL
    """address of the archive, http or https; from an address that you give, another graph is accepted with a warning"""
    overwrite: bool = False
    """write over an existing file"""


@command(name="features", help_text=_HELP)
def main(action: Literal["fetch"], /, *, request: Annotated[Request, Parameter(name="*")] = Request()) -> None:
    del action  # there is one
    if urllib.parse.urlsplit(request.url).scheme not in ("http", "https"):
        raise UserError(f"--url {request.url}: expected an address that begins with https:// or http://")
    record = request.out.with_name(f"{request.out.name}.sha256")
    outputs.check_new(request.out, overwrite=request.overwrite)
    print(f"downloading {request.url}", flush=True)
    facts = _Facts()
    outputs.write(request.out, lambda path: _save(request.url, path, record, facts))
    outputs.write(record, lambda path: _write(path, f"{facts.sha256.hexdigest()}  {request.out.name}\n"))
    print(f"{request.out}: {facts.size:,} bytes, SHA-256 {facts.sha256.hexdigest()}, also in {record}")
    print(facts.unlike() or "its size and MD5 are those of the graph that published FIDs use")
    print(f"for runs: --inception {request.out.absolute()}, or export HVDGAN_INCEPTION={request.out.absolute()}")


class _Facts:
    """Size and digests of a file, block by block."""

    def __init__(self) -> None:
        self.size = 0
        self.sha256 = hashlib.sha256()
        self.md5 = hashlib.md5(usedforsecurity=False)

    def add(self, block: bytes) -> None:
        self.size += len(block)
        self.sha256.update(block)
        self.md5.update(block)

    def unlike(self) -> str | None:
        """Say what differs from the graph that published FIDs use; None: nothing."""
        if (self.size, self.md5.hexdigest()) == (INCEPTION_BYTES, INCEPTION_MD5):
            return None
        return (
            f"this is not the graph that published FIDs use: {self.size:,} bytes, MD5 {self.md5.hexdigest()}; expected "
            f"{INCEPTION_BYTES:,} bytes, MD5 {INCEPTION_MD5}"
        )


def _save(url: str, path: Path, record: Path, facts: _Facts) -> None:
    """Write the graph; a file that is not the published one is refused, unless the user has chosen its address."""
    with path.open("wb") as file:
        for block in _download(url):
            file.write(block)
            facts.add(block)
    if url == URL and (unlike := facts.unlike()):
        raise RunError(f"{url}: {unlike}; nothing is written; to accept it, give its address with --url")
    record.unlink(missing_ok=True)  # that of an older file, if this process ends before it writes its own


def _download(url: str) -> Iterator[bytes]:
    """Yield the blocks of the graph. The archive is read to its end, where gzip checks it.

    Raises:
        RunError: the address cannot be read, or is no such archive.
    """
    found = False
    try:
        with (
            urllib.request.urlopen(url, timeout=_SECONDS) as response,
            gzip.GzipFile(fileobj=response) as unpacked,
            tarfile.open(fileobj=unpacked, mode="r|") as archive,
        ):
            for member in archive:
                if not found and member.isfile() and member.name.removeprefix("./") == MEMBER:
                    found = True
                    content = archive.extractfile(member)
                    while block := content.read(_BLOCK) if content else b"":
                        yield block
            while unpacked.read(_BLOCK):
                pass
    except (gzip.BadGzipFile, tarfile.TarError, zlib.error, EOFError) as error:
        raise RunError(f"{url}: is not an archive .tgz, or is cut off: {in_one_line(error)}; try again") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise RunError(
            f"{url}: cannot be downloaded: {in_one_line(error)}; run this on a machine with internet, or name another "
            "address with --url"
        ) from error
    if not found:
        raise RunError(f"{url}: holds no file {MEMBER}; expected the archive inception-2015-12-05.tgz")


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
