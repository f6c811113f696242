"""Recipes that each make one mistake in a loss; the line that an error must name ends with `# here`."""

import tensorflow as tf

from tiny import Tiny


class NoPair(Tiny):
    def fool(self, nets, batch):  # here
        return tf.reduce_mean(nets.discriminator(nets.generator(batch.latents)))


class If(Tiny):
    def fool(self, nets, batch):
        loss, _ = super().fool(nets, batch)
        if loss > 1.0:  # here
            loss = loss * 0.5
        return loss, {}


class UnknownDraw(Tiny):
    def fool(self, nets, batch):
        return tf.reduce_mean(nets.generator(batch.noise)), {}  # here
