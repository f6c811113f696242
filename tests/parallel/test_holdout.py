"""Two ranks share the hashes that decide which images are held out, and reuse those of an earlier start."""

import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

from building import tiny_run
from hvdgan.cli.config import Config
from hvdgan.data import hold_out, open_source
from hvdgan.data.base.scan_cache import ScanCache
from hvdgan.data.sources.builtin import DigitsSource
from hvdgan.data.sources.picture_arrays import PictureArraySource
from tiny import Tiny


class Measured(Tiny):
    def evaluate(self, nets, batch):
        return {"brightness": tf.reduce_mean(batch.images, axis=(1, 2, 3))}


def test_each_hashes_a_part_and_all_hold_out_the_same(ranks, monkeypatch):
    hashed, digest = [], DigitsSource.digest
    monkeypatch.setattr(DigitsSource, "digest", lambda self, index: hashed.append(index) or digest(self, index))
    run = tiny_run(Measured, ranks=ranks)
    assert 890 < len(hashed) < 910
    alone = hold_out(DigitsSource(image_size=8, channels=1), 0.05)[1]
    assert run.held_out.indices.tolist() == alone.indices.tolist()


def test_what_rank_0_has_kept_both_take(ranks, monkeypatch):
    folder = Path(ranks.gather(tempfile.mkdtemp() if ranks.is_root else "", "folder")[0])
    if ranks.is_root:
        np.save(folder / "some.npy", np.random.default_rng(0).integers(0, 256, (1200, 8, 8, 3), np.uint8))
    ranks.gather(None, "written")
    hashed, digest = [], PictureArraySource.digest
    monkeypatch.setattr(PictureArraySource, "digest", lambda self, index: hashed.append(index) or digest(self, index))
    held = []
    for count in (600, 0):
        hashed.clear()
        # Rank 1 has no run folder of its own.
        kept = ScanCache(folder / "cache", is_root=ranks.is_root)
        source = open_source(Config(data=str(folder / "some.npy")))
        held.append(hold_out(source, 0.1, ranks, kept)[1].indices.tolist())
        assert len(hashed) == count
        kept.write()
    assert held[0] == held[1] == hold_out(source, 0.1)[1].indices.tolist()
