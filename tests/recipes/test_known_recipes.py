"""Each of hvdgan's recipes is built and traced by the command line, and has the networks of its paper.
Modules: recipes.dcgan, networks.dcgan"""

import math

import pytest

from hvdgan.networks.completion import completion_network, context_discriminator
from hvdgan.networks.cyclegan import patch_discriminator, resnet_generator
from hvdgan.networks.dcgan import dcgan_discriminator, dcgan_generator
from hvdgan.networks.pix2pix import unet_generator
from hvdgan.networks.r3gan import r3gan_discriminator, r3gan_generator
from hvdgan.networks.sngan import sngan_discriminator, sngan_generator
from hvdgan.networks.srgan import picture_discriminator, super_resolution
from hvdgan.networks.vae_gan import vae_decoder, vae_discriminator, vae_encoder
from hvdgan.recipe import DataSpec
from hvdgan.train import main
from small import RECIPES, data_flags, flags, long_but, small, write_showers


@pytest.mark.parametrize("name", long_but("dcgan"))
def test_each_recipe_passes_a_dry_run(tmp_path, tmp_path_factory, monkeypatch, capsys, name):
    data = tmp_path_factory.mktemp("data")
    write_showers(data / "showers.npz")
    monkeypatch.chdir(tmp_path)
    words = ["--recipe", name, *flags(name), *data_flags(name, data), "--global-batch-size", "4", "--dry-run"]
    assert main(words) == 0
    assert f", recipe {name}; " in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in ("calo3d", "cyclegan", "downscale")])
@pytest.mark.parametrize(("size", "channels"), [(64, 3), (256, 1)])
def test_every_size_has_its_networks(name, size, channels):
    """A subclass of keras.Model, as the generator of stylegan2, does not say its inputs."""
    recipe, options = small(name)
    shape = (size, size, channels)
    networks = recipe(options, DataSpec(shape, 9, 3, shape if recipe.paired else None)).networks()
    known = [each for network in networks.values() for each in getattr(network, "inputs", None) or []]
    assert shape in [each.shape[1:] for each in known]


OF_64, OF_256 = ({"image_size": size, "channels": 3, "nf": 64} for size in (64, 256))
R3GAN_256 = {**OF_256, "nf": 96, "blocks": 2, "group_width": 16}
PUBLISHED = {
    # The reference implementation has no output biases.
    dcgan_generator: ({**OF_64, "latent_size": 100}, 3_576_704 + 3),
    dcgan_discriminator: (OF_64, 2_765_568 + 64 + 1),
    # 54,425,859 with BatchNorm in the innermost layer, and 54,424,387 with the statistics.
    unet_generator: (OF_256, 54_414_531),
    # 11,378,179 with the biases before instance normalisation, which removes them.
    resnet_generator: ({"channels": 3, "nf": 64, "blocks": 9, "name": "a"}, 11_372_931),
    patch_discriminator: ({"channels": 3, "nf": 64, "halvings": 3, "name": "b"}, 2_764_737 - (128 + 256 + 512)),
    # Table 4; a convolution has 9 * in * out + out, a shortcut in * out + out, a BatchNorm 2 * in.
    sngan_generator: ({"image_size": 32, "channels": 3, "nf": 64, "latent_size": 128}, 4_276_739),
    sngan_discriminator: ({"image_size": 32, "channels": 3, "nf": 64}, 1_053_825),
    # Table 2 has 23.058 and 23.010 million.
    r3gan_generator: ({**R3GAN_256, "latent_size": 64}, 23_057_952),
    r3gan_discriminator: (R3GAN_256, 23_009_568),
    # 1,549,462 with one slope per PReLU and biases in front of BatchNorm.
    super_resolution: ({"factor": 4, "channels": 3, "nf": 64, "blocks": 16}, 1_548_547),
    picture_discriminator: ({"image_size": 96, "channels": 3, "nf": 64}, 23_563_649),
    completion_network: (OF_256, 6_069_155),
    context_discriminator: (OF_256, 45_060_225),
    vae_encoder: ({**OF_64, "latent_size": 128}, 35_112_768),
    vae_decoder: ({**OF_64, "latent_size": 128}, 4_693_155),
    vae_discriminator: (OF_64, 10_953_857),
}
"""numbers of trainable weights"""


@pytest.mark.parametrize("make", PUBLISHED, ids=lambda make: make.__name__)
def test_the_networks_are_those_of_the_papers(make):
    arguments, count = PUBLISHED[make]
    assert sum(math.prod(variable.shape) for variable in make(**arguments).trainable_variables) == count
