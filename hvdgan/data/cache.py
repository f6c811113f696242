"""Keeps samples in memory, as their stores return them."""

import os
from typing import Literal

import numpy as np

from hvdgan.cli import hosts
from hvdgan.cli.errors import UserError
from hvdgan.cli.shared_errors import ALONE, Peers, on_all
from hvdgan.data.samples import Samples
from hvdgan.data.store import DerivedStore, Store

_MEMORY_FRACTION = 0.8
"""fraction of the free memory that the cache may take; the run needs the rest"""


def cached(source: Samples, kind: Literal["none", "memory"], peers: Peers = ALONE) -> Samples:
    """Samples of which each rank reads each once: all of them in the end, since its slices differ every epoch.

    Args:
        source: the samples; those that memory holds are returned as they are.
        kind: value of `--pipeline.cache`.
        peers: the ranks; each calls this.

    Raises:
        UserError: the samples do not fit into the memory of a host; raised on every rank.
    """
    if kind == "none" or source.in_memory:
        return source
    on_all(lambda: _check_memory(source, peers), peers, "memory for the cache")
    return source.replace(images=_Kept(source.images), inputs=source.inputs and _Kept(source.inputs))


class _Kept(DerivedStore):
    """An array in memory; the system provides a page only when a sample is written to it."""

    in_memory = True

    def __init__(self, store: Store) -> None:
        super().__init__(store, store.shape, store.dtype)
        self._samples = np.zeros(store.shape, store.dtype)
        self._there = np.zeros(store.shape[0], bool)

    def read(self, indices: np.ndarray) -> np.ndarray:
        missing = indices[~self._there[indices]]
        if len(missing):
            self._samples[missing] = self._stored.read(missing)
            self._there[missing] = True  # last, since other threads read
        return self._samples[indices]


def _check_memory(source: Samples, peers: Peers) -> None:
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
