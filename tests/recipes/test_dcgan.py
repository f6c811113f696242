"""The recipe dcgan."""

import keras
import numpy as np

from hvdgan.networks.dcgan import dcgan_discriminator, dcgan_generator


def widths(network, layer):
    return [found.filters for found in network.layers if isinstance(found, layer)]


def test_at_64_pixels_it_is_the_network_of_the_paper():
    generator = dcgan_generator(image_size=64, channels=3, latent_size=100, nf=64)
    discriminator = dcgan_discriminator(image_size=64, channels=3, nf=64)
    assert widths(generator, keras.layers.Conv2DTranspose) == [512, 256, 128, 64, 3]
    assert widths(discriminator, keras.layers.Conv2D) == [64, 128, 256, 512, 1]
    for network in (generator, discriminator):
        kernels = [layer for layer in network.layers if hasattr(layer, "kernel_size")]
        assert {layer.kernel_size for layer in kernels} == {(4, 4)}
        assert sorted(layer.strides for layer in kernels) == [(1, 1)] + [(2, 2)] * 4
    # The reference implementation has 3,576,704 and 2,765,568 parameters without its output biases, statistics apart.
    assert sum(np.prod(v.shape) for v in generator.trainable_variables) == 3_576_704 + 3
    assert sum(np.prod(v.shape) for v in discriminator.trainable_variables) == 2_765_568 + 64 + 1
