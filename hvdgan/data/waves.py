"""Wave files as samples: each time that a file is read it gives another segment, whose place is drawn."""

import contextlib
import io
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hvdgan.data.arrays import refuse_picture_flags
from hvdgan.data.bad_files import BadFile, BadImage, file_in, printable, refuse_if_too_many
from hvdgan.data.pictures import WAVES, classes_of, find
from hvdgan.data.samples import Samples, fingerprint_of
from hvdgan.data.sharing import share_out
from hvdgan.data.store import DataRequest, Store
from hvdgan.errors import UserError
from hvdgan.errors.shared_errors import from_root
from hvdgan.values import value_map
from hvdgan.values.sample_values import Layout, SampleValues

_LOUDEST = 8.0
"""number of a wave that no sound within [-1, 1] has, also if it was filtered"""


def open_waves(request: DataRequest) -> Samples:
    """The wave files of a folder and of all folders below it, each with segments of one length.

    Rank 0 lists the files, and the ranks share the work of reading their headers. If all files lie in subfolders, the
    first folder of a path is the class, such as a speaker.
    """
    config, peers, segment = request.config, request.peers, request.config.arrays.segment
    folder, where = config.data, f"--data {config.data}"

    def listed() -> list[Any]:
        listing = find(folder, WAVES)
        return [listing.files, listing.passed_over()]

    files, passed_over = from_root(listed, peers, f"{where}: its files")
    headers = share_out(files, lambda some: [_header(folder, file) for file in some], peers, f"{where}: its headers")
    bad = [BadFile(printable(file), each) for file, each in zip(files, headers, strict=True) if isinstance(each, str)]
    waves = {file: each for file, each in zip(files, headers, strict=True) if not isinstance(each, str)}
    most = config.max_bad_fraction if waves else 0.0
    refuse_if_too_many(UserError, name=folder, bad_files=bad, total=len(files), max_bad_fraction=most)
    lengths, rate = [length for length, *_ in waves.values()], _rate_of(where, waves)
    if segment is None:
        raise UserError(
            f"{where}: waves of {min(lengths):,} to {max(lengths):,} samples, {rate:,} per second; give the length of "
            "the part that networks see, such as --segment 8192 (hvdgan prepare packs none: a run reads them as fast)"
        )
    if request.paired:
        raise UserError(f"{where}: the recipe takes pairs, and waves have no inputs; give data of your own, with both")
    if config.pipeline.cache == "memory":
        raise UserError("--pipeline.cache memory: a wave has another segment each time; leave the flag out")
    store = WaveFiles(folder, [*waves], lengths, segment)
    refuse_picture_flags(config, store.shape[1:])
    labels, class_names = classes_of([*waves])
    told = [str(lengths).encode(), *map(os.fsencode, waves)]
    return Samples(
        name=folder,
        images=store,
        values=SampleValues(value_map.parse("none", "--values", ("0",))),
        layout=Layout(store.shape[1:]),
        fingerprint=fingerprint_of(f"waves {segment} {rate}".encode(), told),
        labels=labels,
        class_names=class_names,
        bad_files=bad,
        remarks=[f"{where}: {passed_over}"] if passed_over else [],
        folder=folder,
        paths=[*waves],
        rate=rate,
    )


class WaveFiles(Store):
    """A segment (T, 1) of each file; a shorter file is followed by zeros."""

    def __init__(self, folder: str, files: Sequence[str], lengths: Sequence[int], segment: int) -> None:
        super().__init__(folder, (len(files), segment, 1), np.float32)
        self._files, self._lengths = files, lengths

    def read(self, indices: np.ndarray) -> np.ndarray:
        return self.read_drawn(indices, None)

    def read_drawn(self, indices: np.ndarray, draws: np.ndarray | None) -> np.ndarray:
        out = np.zeros((len(indices), *self.shape[1:]), self.dtype)
        for place, index in enumerate(indices.tolist()):
            count = min(self.shape[1], self._lengths[index])
            spare = self._lengths[index] - count
            first = spare // 2 if draws is None else int(draws[place]) % (spare + 1)
            out[place, :count] = self._segment(index, first, count)
        return out

    def named(self, index: int) -> str:
        return printable(self._files[index])

    def key(self, index: int) -> bytes:
        return os.fsencode(self._files[index])

    def _segment(self, index: int, first: int, count: int) -> np.ndarray:
        with _opened(self.name, self._files[index]) as wave:
            wave.seek(first)
            found: np.ndarray = wave.read(count, dtype="float32", always_2d=True)
        if len(found) < count:
            raise BadImage(self.named(index), f"ends after {first + len(found):,} of {self._lengths[index]:,} samples")
        if (peak := np.abs(found).max()) > _LOUDEST:
            raise BadImage(self.named(index), f"numbers up to {peak:.5g}; expected [-1, 1]")
        return found


def _header(folder: str, file: str) -> list[int] | str:
    """The length of a file, its samples per second and its channels; or why it cannot be read."""
    try:
        with _opened(folder, file) as wave:
            return [wave.frames, wave.samplerate, wave.channels] if wave.frames else "no samples"
    except BadImage as bad:
        return bad.bad_file.reason


def _rate_of(where: str, waves: dict[str, list[int]]) -> int:
    """The samples per second of all waves; several channels, or another rate than the first one's, are refused."""
    (first, (_, rate, _)), *_ = waves.items()
    for file, (_, its, channels) in waves.items():
        if channels != 1 or its != rate:
            name, like = printable(file), f", as in {printable(first)}" * (file != first)
            raise UserError(
                f"{where}: {name} has {channels} channel(s) of {its:,} samples per second; expected 1 of {rate:,}"
                f"{like}; convert one, such as with ffmpeg -i {name} -ac 1 -ar {rate} new.wav"
            )
    return rate


@contextlib.contextmanager
def _opened(folder: str, file: str) -> Iterator[Any]:
    """Open a wave; a failure of the disk, which libsndfile would take for the end of the file, is raised."""
    try:
        import soundfile
    except Exception as error:  # it is missing, or libsndfile is
        what = f"waves are read with soundfile, which cannot be imported ({error}); pip install 'hvdgan[sound]'"
        raise UserError(f"--data {folder}: {what}") from error
    with file_in(folder, file, _NotedReads) as content:
        try:
            with soundfile.SoundFile(content) as wave:
                yield wave
        except soundfile.LibsndfileError as error:
            reason = error.error_string.rstrip(".") if os.fstat(content.fileno()).st_size else "empty file"
            raise content.failure or BadImage(printable(file), reason) from error
        if content.failure:
            raise content.failure


class _NotedReads(io.FileIO):
    """A file that notes the error of a read, since a library's callback cannot raise one."""

    failure: OSError | None = None

    def readinto(self, room: Any) -> int:
        try:
            return super().readinto(room) or 0
        except OSError as error:
            self.failure = error
            return 0
