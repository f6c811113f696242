"""The command hvdgan features: gets the Inception network of FID, on a machine with internet."""

from hvdgan.cli import start

start.begin(__name__)

import dataclasses
import hashlib
import http.client
import sys
import tarfile
import urllib.request
import zlib
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from hvdgan.cli.app import command
from hvdgan.errors import RunError, in_one_line
from hvdgan.files import outputs
from hvdgan.settings.evaluation import INCEPTION_BYTES, INCEPTION_MD5

_HELP = """Get the network of FID: the frozen graph classify_image_graph_def.pb of the archive inception-2015-12-05.tgz.

Run `hvdgan features fetch` on a machine with internet, such as a login node; jobs never download. Nothing
else of the archive is unpacked. The SHA-256 of the file is printed and written next to it."""
URL = "https://storage.googleapis.com/download.tensorflow.org/models/image/imagenet/inception-2015-12-05.tgz"
"""the address in TensorFlow's own documentation of its graph transforms; FID's first programs name the same file"""
MEMBER = "classify_image_graph_def.pb"
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
    out, record = request.out, request.out.with_name(f"{request.out.name}.sha256")
    outputs.check_new(out, overwrite=request.overwrite)
    print(f"downloading {request.url}", flush=True)
    graph = _download(request.url)
    md5, sha256 = hashlib.md5(graph, usedforsecurity=False).hexdigest(), hashlib.sha256(graph).hexdigest()
    is_published = (len(graph), md5) == (INCEPTION_BYTES, INCEPTION_MD5)
    unlike = (
        f"this is not the graph that published FIDs use: {len(graph):,} bytes, MD5 {md5}; expected "
        f"{INCEPTION_BYTES:,} bytes, MD5 {INCEPTION_MD5}"
    )
    if request.url == URL and not is_published:
        raise RunError(f"{URL}: {unlike}; nothing is written; to accept it, give its address with --url")
    outputs.write(out, lambda path: _save(path, graph, record))
    outputs.write_text(record, f"{sha256}  {out.name}\n")
    print(f"{out}: {len(graph):,} bytes, SHA-256 {sha256}, also in {record}")
    print("its size and MD5 are those of the graph that published FIDs use" if is_published else unlike)
    print(f"for runs: --inception {out.absolute()}, or export HVDGAN_INCEPTION={out.absolute()}")


def _save(path: Path, graph: bytes, record: Path) -> None:
    path.write_bytes(graph)
    record.unlink(missing_ok=True)  # that of an older file, if this process ends before it writes its own


def _download(url: str) -> bytes:
    """Return the graph; a RunError says that the address cannot be read, or is no such archive."""
    try:
        with (
            urllib.request.urlopen(url, timeout=_SECONDS) as response,
            tarfile.open(fileobj=response, mode="r|gz") as archive,
        ):
            members = (member for member in archive if member.name.removeprefix("./") == MEMBER)
            if (member := next(members, None)) and (file := archive.extractfile(member)):
                return file.read()
        problem = f"holds no file {MEMBER}"
    except (OSError, EOFError, ValueError, tarfile.TarError, zlib.error, http.client.HTTPException) as error:
        problem = f"cannot be downloaded, or is no whole archive .tgz: {in_one_line(error)}"
    raise RunError(
        f"{url}: {problem}; expected the archive inception-2015-12-05.tgz; run this on a machine with internet, or "
        "name another address with --url"
    )


if __name__ == "__main__":
    sys.exit(main())
