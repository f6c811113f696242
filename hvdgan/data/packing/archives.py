"""Zip and tar archives: where each image lies within the file, and its bytes; nothing is unpacked to the disk by name.

A member's name is only ever a name: no path is made of it. Its size is bounded before anything is read, so an archive
that unfolds to far more than it holds fills neither memory nor disk.
"""

import bz2
import gzip
import lzma
import os
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

from hvdgan.cli.errors import UserError
from hvdgan.cli.replacing import whole_file
from hvdgan.data.formats.images import MAX_BYTES, SUFFIXES
from hvdgan.data.source import BadImage, Unreadable, printable

GONE = "it was there when the images were listed. Bring it back, then give the same command again: it goes on"
"""what to do about an original that can no longer be read"""
MAX_EXPANSION = 20
"""times its size that a compressed tar archive may grow: image files hardly compress"""
_MIN_EXPANDED = 2**26
_BLOCK = 2**20
_PACKERS: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}


class Member(NamedTuple):
    """An image's file within an archive.

    name: without a leading `./` or `/`.
    offset: of its bytes (tar) or of its local header (zip), within the archive.
    stored: bytes within the archive.
    size: bytes when unpacked.
    method: of compression, as zip numbers it: 0 none, 8 deflate.
    crc: CRC-32 of the unpacked bytes, or None where the archive has none.
    problem: why it cannot be used; empty if it can.
    """

    name: str
    offset: int
    stored: int
    size: int
    method: int = 0
    crc: int | None = None
    problem: str = ""


def list_zip(path: Path) -> list[Member]:
    """The images of a zip archive.

    Raises:
        UserError: it cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return [_zip_member(info) for info in archive.infolist() if not info.is_dir() and _is_image(info.filename)]
    except (zipfile.BadZipFile, NotImplementedError, ValueError, IndexError) as error:  # names that are none
        raise UserError(f"{path}: cannot be read as a zip archive: {error}") from error


def is_tar(path: Path) -> bool:
    """Whether this is a tar archive, compressed or not, with something in it.

    Zeros are an empty one to Python, and a zip archive may begin with them.

    Raises:
        OSError: it cannot be read.
    """
    try:
        # Python's own search for the compression takes zeros for endless xz streams.
        unpack = _unpacker(path) or open
        with unpack(path, "rb") as file, tarfile.open(fileobj=file, mode="r:") as archive:
            return archive.next() is not None
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError):
        return False
    except OSError as error:
        if error.errno is not None:
            raise
        return False  # what gzip and bz2 say of other content


def list_tar(path: Path, work: Path) -> tuple[Path, list[Member]]:
    """The images of a tar archive, and the file to read them from.

    Args:
        path: the archive; a compressed one, which can only be read from its beginning on, becomes a file in `work`.
        work: a folder that is there.

    Raises:
        UserError: it is damaged, or unfolds to too much.
    """
    if unpack := _unpacker(path):
        path = _expanded(path, work / "archive.tar", unpack)
    members, end = [], os.stat(path).st_size
    try:
        with tarfile.open(path, "r:") as archive:
            while (info := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined]  # it would keep all
                if _is_image(info.name) and not info.isdir():
                    members.append(_tar_member(info, end))
            _check_end(path, archive.offset)
    except tarfile.TarError as error:
        raise UserError(f"{path}: cannot be read as a tar archive: {error}") from error
    return path, members


def reason_against(member: Member) -> str:
    """Why a member is not read; empty if it is."""
    if member.problem:
        return member.problem
    if ".." in member.name.split("/"):
        return "its name leads out of the archive"
    if member.size == 0:
        return "empty file"
    if max(member.size, member.stored) > MAX_BYTES:
        return f"{member.size:,} bytes, more than the {MAX_BYTES:,} accepted"
    return ""


def read_member(path: str, member: Member) -> bytes:
    """The bytes of an image's file.

    Raises:
        BadImage: they are not what the archive says they are.
        Unreadable: the archive can no longer be read, which says nothing of an image.
    """
    name = printable(member.name)
    try:
        with open(path, "rb", buffering=0) as file:
            offset = member.offset if member.crc is None else _after_local_header(file.fileno(), member)
            stored = os.pread(file.fileno(), member.stored, offset)
    except OSError as error:
        raise Unreadable(f"{name}: {error.strerror}; {GONE}") from error
    except struct.error as error:
        raise BadImage(name, f"the archive cannot be read there: {error}") from error
    if len(stored) < member.stored:
        raise BadImage(name, "the archive is cut off there")
    try:
        data = stored if member.method == 0 else zlib.decompressobj(-15).decompress(stored, member.size + 1)
    except zlib.error as error:
        raise BadImage(name, f"damaged in the archive: {error}") from error
    if len(data) != member.size or (member.crc is not None and zlib.crc32(data) != member.crc):
        raise BadImage(name, "damaged in the archive: size or checksum is another")
    return data


def _unpacker(path: Path) -> Any:
    """What opens a compressed file; None for one that is not."""
    with path.open("rb") as file:
        start = file.read(6)
    return next((unpack for magic, unpack in _PACKERS.items() if start.startswith(magic)), None)


def _is_image(name: str) -> bool:
    """As in a folder, what begins with a dot is skipped, and what has no suffix of an image does not count."""
    hidden = any(part.startswith(".") and part not in (".", "..") for part in name.split("/"))
    return name.lower().endswith(SUFFIXES) and not hidden


def _plain(name: str) -> str:
    return "/".join(part for part in name.split("/") if part not in ("", "."))


def _zip_member(info: zipfile.ZipInfo) -> Member:
    problem = ""
    if info.flag_bits & 0x1:
        problem = "encrypted"
    elif info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        problem = f"compressed by method {info.compress_type}; expected stored or deflated"
    return Member(
        _plain(info.filename),
        info.header_offset,
        info.compress_size,
        info.file_size,
        info.compress_type,
        info.CRC,
        problem,
    )


def _tar_member(info: tarfile.TarInfo, end: int) -> Member:
    problem = ""
    if not info.isreg():
        problem = "a link or device in the archive, not a file"
    elif info.issparse():
        problem = "a sparse file"
    elif info.offset_data + info.size > end:
        problem = "the archive is cut off there"
    return Member(_plain(info.name), info.offset_data, info.size, info.size, problem=problem)


def _after_local_header(descriptor: int, member: Member) -> int:
    """Name and extra field of the local header may have other sizes than those of the directory."""
    header = os.pread(descriptor, 30, member.offset)
    if header[:4] != b"PK\x03\x04":
        raise struct.error("no local header")
    name_bytes, extra_bytes = struct.unpack("<HH", header[26:30])
    return member.offset + 30 + name_bytes + extra_bytes


def _check_end(path: Path, offset: int) -> None:
    """Python's reader takes a damaged header in the middle for the end."""
    with path.open("rb") as file:
        file.seek(offset)
        block = file.read(tarfile.BLOCKSIZE)
    if block.strip(b"\0"):
        raise UserError(f"{path}: damaged at byte {offset:,}: no header of a tar archive; repair it or leave it out")


def _expanded(path: Path, target: Path, unpack: Any) -> Path:
    """The tar file inside a compressed one."""
    limit = max(MAX_EXPANSION * os.stat(path).st_size, _MIN_EXPANDED)
    try:
        with (
            whole_file(target, target.with_suffix(".partial")) as partial,
            unpack(path, "rb") as packed,
            partial.open("wb") as file,
        ):
            while block := packed.read(_BLOCK):
                if file.tell() + len(block) > limit:
                    raise UserError(
                        f"{path}: unfolds to more than {limit:,} bytes, {MAX_EXPANSION} times its size: "
                        "not an archive of images; unpack it yourself if it is"
                    )
                file.write(block)
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: the compressed archive is damaged: {error}") from error
    return target
