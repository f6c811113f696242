"""Two ranks share the hashes that decide which images are held out."""

import tensorflow as tf

from building import tiny_run
from hvdgan.data import hold_out
from hvdgan.data.builtin import digits
from hvdgan.data.store import Store
from tiny import Tiny


class Measured(Tiny):
    def evaluate(self, nets, batch):
        return {"brightness": tf.reduce_mean(batch.images, axis=(1, 2, 3))}


def test_each_hashes_a_part_and_all_hold_out_the_same(ranks, monkeypatch):
    hashed, digest = [], Store.digest
    monkeypatch.setattr(Store, "digest", lambda self, index: hashed.append(index) or digest(self, index))
    run = tiny_run(Measured, ranks=ranks)
    assert 890 < len(hashed) < 910
    alone = hold_out(digits(image_size=8, channels=1), 0.05)[1]
    assert run.held_out.indices.tolist() == alone.samples.indices.tolist()
