"""Keeps samples in memory, as their source returns them."""

import os
from typing import Literal

import numpy as np

from hvdgan.cli import hosts
from hvdgan.cli.errors import UserError
from hvdgan.cli.shared_errors import ALONE, Peers, on_all
from hvdgan.data.source import Source, SourceWrapper

_MEMORY_FRACTION = 0.8
"""fraction of the free memory that the cache may take; the run needs the rest"""


def cached(source: Source, kind: Literal["none", "memory"], peers: Peers = ALONE) -> Source:
    """A source of which each rank reads each sample once: all of them in the end, since its slices differ every epoch.

    Args:
        source: the samples; a source that holds them in memory is returned as it is.
        kind: value of `--pipeline.cache`.
        peers: the ranks; each calls this.

    Raises:
        UserError: the samples do not fit into the memory of a host; raised on every rank.
    """
    if kind == "none" or source.in_memory:
        return source
    on_all(lambda: _check_memory(source, peers), peers, "memory for the cache")
    return _InMemory(source)


class _InMemory(SourceWrapper):
    """An array in memory; the system provides a page only when a sample is written to it."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._samples = source.blank(len(source))
        self._there = np.zeros(len(source), bool)

    def fetch_batch(self, indices: np.ndarray) -> np.ndarray:
        missing = indices[~self._there[indices]]
        if len(missing):
            self._samples[missing] = self._source.fetch_batch(missing)
            self._there[missing] = True  # last, since other threads read
        return self._samples[indices]


def _check_memory(source: Source, peers: Peers) -> None:
    """Check that all samples fit into the memory of this host, or raise a UserError."""
    free = hosts.free_memory()
    needed = source.blank(1).nbytes * len(source) * peers.local_size
    if free is None or needed <= _MEMORY_FRACTION * free:
        return
    raise UserError(
        f"--pipeline.cache memory: {len(source):,} samples of {source.record_shape} {source.dtype} take "
        f"{needed / 1e9:.3g} GB for the {peers.local_size} rank(s) of {os.uname().nodename}, where {free / 1e9:.3g} GB "
        f"are free and at most {_MEMORY_FRACTION:.0%} of that may be used; pack the data with hvdgan.prepare instead"
    )
