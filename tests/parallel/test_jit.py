"""--jit on two ranks: they stay equal, and compute what one rank computes that does not use it."""

import hashlib

import numpy as np
import pytest
import tensorflow as tf

from building import data_of, stage_step, tiny_run, values_of
from hvdgan.distributed.ranks import Ranks
from tiny import Tiny, TinyOptions


class Mixing(Tiny):
    """A loss that draws numbers, which is then done by XLA."""

    def judge(self, nets, batch):
        noise = batch.random.normal("noise", tuple(batch.images.shape[1:]))
        fake = nets.discriminator(nets.generator(batch.latents) + 0.1 * noise)
        return tf.reduce_mean(tf.nn.softplus(fake) + tf.nn.softplus(-nets.discriminator(batch.images))), {}


@pytest.mark.parametrize("accumulate", [2])
def test_two_compiled_ranks_compute_what_one_does_uncompiled(ranks, accumulate):
    results = []
    for peers, jit, parts in ((ranks, True, accumulate), (Ranks(), False, 1)):
        run = tiny_run(Mixing, TinyOptions(steps=20), peers, jit=jit, accumulate=parts)
        for number in range(5):
            stage_step(run)(number, number, data_of(run, number))
        results.append({name: value for name, value in values_of(run).items() if name.startswith("networks/")})
    together, alone = results
    for name, value in alone.items():
        assert np.linalg.norm(together[name] - value) <= 1e-4 * np.linalg.norm(value), name
    bits = hashlib.sha256(b"".join(together[name].tobytes() for name in sorted(together))).hexdigest()
    assert len(set(ranks.gather(bits, "weights"))) == 1
