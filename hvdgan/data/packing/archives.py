"""Lists and reads the images in zip and tar archives, without unpacking them to the disk.

No path is made of a member's name, and its size is checked before it is read. An archive that expands to far more than
its size can therefore fill neither memory nor disk.
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
from hvdgan.cli.files.replacing import whole_file
from hvdgan.data.base.source import BadImage, Unreadable, printable
from hvdgan.data.formats.images import MAX_BYTES, SUFFIXES

GONE = "it existed when the images were listed. Restore it, then give the same command again to resume"
"""end of the error for an image that can no longer be read"""
MAX_EXPANSION = 20
"""largest factor by which a compressed tar archive may expand, since image files hardly compress"""
MIN_EXPANDED = 2**26
"""number of bytes to which any compressed tar archive may expand"""
_BLOCK = 2**20
_PACKERS: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}


class Member(NamedTuple):
    """An image's file within an archive.

    name: name without a leading `./` or `/`.
    offset: offset in the archive of its bytes (tar) or of its local header (zip).
    stored: size in the archive, in bytes.
    size: size when unpacked, in bytes.
    method: number of the compression method in a zip archive: 0 none, 8 deflate.
    crc: CRC-32 of the unpacked bytes, or None if the archive has none.
    problem: reason why it cannot be used, or an empty string.
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
        UserError: the archive cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return [_zip_member(info) for info in archive.infolist() if not info.is_dir() and _is_image(info.filename)]
    except (zipfile.BadZipFile, NotImplementedError, ValueError, IndexError) as error:  # also damaged names
        raise UserError(f"{path}: cannot be read as a zip archive: {error}") from error


def is_tar(path: Path) -> bool:
    """Check for a tar archive, compressed or not, that is not empty.

    Python takes a file that begins with zeros for an empty tar archive, but a zip archive may begin with zeros.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        # Python's own detection of the compression takes zeros for endless xz streams.
        unpack = unpacker(path) or open
        with unpack(path, "rb") as file, tarfile.open(fileobj=file, mode="r:") as archive:
            return archive.next() is not None
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError):
        return False
    except OSError as error:
        if error.errno is not None:
            raise
        return False  # the error of gzip and bz2 for other content


def list_tar(path: Path, work: Path) -> tuple[Path, list[Member]]:
    """The images of a tar archive, and the file to read them from.

    Args:
        path: path of the archive; a compressed one is expanded to a file in `work`, since it has no random access.
        work: an existing folder.

    Raises:
        UserError: the archive is damaged, or expands to too much.
    """
    if unpack := unpacker(path):
        path = _expanded(path, work / "archive.tar", unpack)
    members, end = [], os.stat(path).st_size
    try:
        with tarfile.open(path, "r:") as archive:
            while (info := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined]  # else it keeps all members in memory
                if _is_image(info.name) and not info.isdir():
                    members.append(_tar_member(info, end))
            _check_end(path, archive.offset)
    except tarfile.TarError as error:
        raise UserError(f"{path}: cannot be read as a tar archive: {error}") from error
    return path, members


def reason_against(member: Member) -> str:
    """The reason why a member is not read, or an empty string."""
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
        BadImage: they differ from the archive's directory.
        Unreadable: the archive as a whole can no longer be read.
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
        raise BadImage(name, "damaged in the archive: size or checksum differs")
    return data


def unpacker(path: Path) -> Any:
    """The function that opens a compressed file; None if it is not compressed."""
    with path.open("rb") as file:
        start = file.read(6)
    return next((unpack for magic, unpack in _PACKERS.items() if start.startswith(magic)), None)


def _is_image(name: str) -> bool:
    """Check for a name with an image's suffix that is not hidden, as in a folder."""
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
    """Place behind the local header, whose name and extra field may have other sizes than the directory's."""
    header = os.pread(descriptor, 30, member.offset)
    if header[:4] != b"PK\x03\x04":
        raise struct.error("no local header")
    name_bytes, extra_bytes = struct.unpack("<HH", header[26:30])
    return member.offset + 30 + name_bytes + extra_bytes


def _check_end(path: Path, offset: int) -> None:
    """Refuse a damaged header in the middle, which Python's reader takes for the end."""
    with path.open("rb") as file:
        file.seek(offset)
        block = file.read(tarfile.BLOCKSIZE)
    if block.strip(b"\0"):
        raise UserError(f"{path}: damaged at byte {offset:,}: no header of a tar archive; repair it or leave it out")


def _expanded(path: Path, target: Path, unpack: Any) -> Path:
    """The tar file inside a compressed one."""
    limit = max(MAX_EXPANSION * os.stat(path).st_size, MIN_EXPANDED)
    try:
        with (
            whole_file(target, target.with_suffix(".partial")) as partial,
            unpack(path, "rb") as packed,
            partial.open("wb") as file,
        ):
            while block := packed.read(_BLOCK):
                if file.tell() + len(block) > limit:
                    raise UserError(
                        f"{path}: expands to more than {limit:,} bytes, {MAX_EXPANSION} times its size, so it is "
                        "probably not an archive of images; if it is, unpack it yourself"
                    )
                file.write(block)
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: the compressed archive is damaged: {error}") from error
    return target
