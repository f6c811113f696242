"""Reads and verifies single records of TFRecord files of any origin, by an index that all ranks build together."""

import functools
import os
from collections.abc import Sequence

import numpy as np

from hvdgan.cli.errors import RunError, UserError
from hvdgan.cli.shared_errors import Peers, on_all
from hvdgan.data.base.gzip_files import GzipFile
from hvdgan.data.base.scan_cache import ScanCache
from hvdgan.data.base.source import printable
from hvdgan.data.formats.tfrecord import OPEN_FILES, RecordFile, payload_of
from hvdgan.data.formats.tfrecord_index import digest_of, index_files
from hvdgan.data.formats.tfrecord_scan import Features, Index


class RecordReader:
    """The records of TFRecord files, in the order of the files' names; safe to call from several threads.

    The index takes 16 bytes of memory per record, and that of files compressed as a whole up to 128 MiB more. It is
    cached in the run folder.

    labels: labels of the records, int32 (N,), or None.
    conditions: numbers that describe each record, float64 (N, k), or None.

    Args:
        name: value of `--data`.
        files: paths of the files.
        features: names of the features that are needed.
        peers: the ranks that open the files together.
        scans: cache of the index.

    Raises:
        UserError: a file is not a TFRecord file, is damaged, lacks a feature, or may not be read.
        RunError: the ranks do not see the same files, or the disk or the network has failed.
    """

    def __init__(self, name: str, files: Sequence[str], features: Features, peers: Peers, scans: ScanCache) -> None:
        self.name, self._files = name, list(files)
        indices = index_files(name, self._files, features, peers, scans)
        records = [len(index.offsets) for index in indices]
        if not sum(records):
            raise UserError(f"--data {name}: {len(self._files)} TFRecord file(s) without a record; expected images")
        self._firsts = np.cumsum([0, *records])
        """the index of each file's first record, and of the one after the last"""
        self._offsets = np.concatenate([index.offsets for index in indices])
        labels = np.concatenate([index.labels for index in indices])
        self.labels = labels if features.label else None
        numbers = np.concatenate([index.conditions for index in indices])
        self.conditions = numbers.reshape(len(self), -1) if features.conditions else None
        self._ends = [index.end for index in indices]
        self._opened = functools.lru_cache(maxsize=OPEN_FILES)(RecordFile)
        self._compressed: dict[str, GzipFile] = {}
        if any(index.places for index in indices):
            self._compressed = on_all(lambda: self._opened_once(indices), peers, f"--data {name}: its files")
        # They cover neither the name of the label feature nor the folder, which depends on the machine.
        self.parts = [os.path.basename(file).encode(errors="surrogateescape") for file in self._files]
        """bytes that identify the names of the files, their records and labels, and every byte in them"""
        self.parts += [self._firsts.tobytes(), self._offsets.tobytes(), labels.tobytes()]
        self.parts += [digest_of(index).encode() for index in indices]

    def __len__(self) -> int:
        return len(self._offsets)

    def named(self, index: int) -> str:
        """The name of a record, for messages and as its key."""
        file, place = self._place(index)
        return f"{printable(os.path.basename(self._files[file]))}[{place}]"

    def payload(self, index: int) -> bytes:
        """The serialized tf.train.Example.

        Raises:
            RunError: the record cannot be read, or its checksum differs; the message names the file and the record.
        """
        file, place = self._place(index)
        offset, path = int(self._offsets[index]), self._files[file]
        past = self._ends[file] if index + 1 == self._firsts[file + 1] else int(self._offsets[index + 1])
        try:
            return payload_of((self._compressed.get(path) or self._opened(path)).read(offset, past - offset))
        except OSError as error:
            reason = error.strerror or str(error)
        except ValueError as error:
            reason = str(error)
        raise RunError(
            f"--data {self.name}: {printable(self._files[file])}, record {place}: {reason}; the file is damaged, or "
            "has changed since the run began: restore it, then resume"
        )

    def _opened_once(self, indices: Sequence[Index]) -> dict[str, GzipFile]:
        """The files that are compressed as a whole, by their paths; each holds its places, and no open file."""
        found = {}
        for file, index in zip(self._files, indices, strict=True):
            try:
                if index.places:
                    found[file] = GzipFile(file, index.places)
            except (OSError, ValueError) as error:
                raise RunError(
                    f"--data {self.name}: {printable(file)} has changed since it was opened: {error}"
                ) from error
        return found

    def _place(self, index: int) -> tuple[int, int]:
        """The number of the file, and of the record within it."""
        file = int(np.searchsorted(self._firsts, index, side="right")) - 1
        return file, index - int(self._firsts[file])
