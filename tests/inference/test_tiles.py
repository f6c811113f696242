"""Whole fields by tiles: equal for tiles of any size, noise by place, and refusals that name the layer.
Modules: inference.any_size, inference.places"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from fields import Fields, Options
from hvdgan.errors import UserError
from hvdgan.inference.any_size import AnySizeNets
from hvdgan.inference.places import PlaceRandom
from hvdgan.inference.tiles import WholeFields
from hvdgan.recipe import DataSpec
from hvdgan.recipe.nets import Nets
from hvdgan.recipes.downscale import Downscale, DownscaleOptions

LARGE = {2: (72,), 3: (72, 104), 4: (64, 24, 32)}


def whole_fields(kind, shape=(32, 32, 1), **more):
    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    recipe = Fields(Options(kind=kind), DataSpec(shape, 10, **more))
    networks = recipe.networks()
    return WholeFields(recipe, Nets(networks, training=False), seed=1), networks


def drawn(fields, space, tile, number=0, **facts):
    """A sample by tiles, and the number of them."""
    images = np.random.default_rng(5).normal(size=(1, *space, 1)).astype(np.float32)
    made, tiles = np.full((*space, 1), np.nan, np.float32), fields.tiles(space, tile)
    for each in tiles:
        made[each.region] = fields(number, each, {"images": images, **facts})
    return made, len(tiles)


@pytest.mark.parametrize(
    ("kind", "shape", "tile"),
    [
        ("strides", (32, 32, 1), 8),
        ("nested", (32, 48, 1), 20),
        pytest.param("strides", (16, 16, 16, 1), 8, marks=pytest.mark.long),
        ("strides", (32, 1), 8),
    ],
)
def test_tiles_of_any_size_give_what_the_untiled_network_does(kind, shape, tile):
    """The strides are 2 and 2, of kernels of 4 and 3."""
    fields = whole_fields(kind, shape)[0]
    assert fields.step == 4 and all(4 <= far <= 20 for far in fields.reach)
    space = LARGE[len(shape)]
    whole, count = drawn(fields, space, 10**6)
    assert count == 1
    small, many = drawn(fields, space, tile)
    assert many > 1
    np.testing.assert_allclose(small, whole, rtol=0, atol=1e-5)
    other = drawn(fields, space, tile, number=1)[0]
    assert np.abs(other - whole).min() > 1e-6
    with pytest.raises(UserError, match="multiples of 4"):
        fields.tiles((space[0] + 2, *space[1:]), tile)


def test_labels_and_conditions_are_those_of_all_tiles_of_a_field():
    fields = whole_fields("strides", num_classes=3, conditions=("a", "b"))[0]

    def made(tile, label, *conditions):
        facts = {"labels": np.array([label], np.int32), "conditions": np.array([conditions], np.float32)}
        return drawn(fields, (72, 104), tile, **facts)[0]

    whole = made(10**6, 2, 0.5, -1.0)
    np.testing.assert_allclose(made(20, 2, 0.5, -1.0), whole, rtol=0, atol=1e-5)
    for other in (made(20, 1, 0.5, -1.0), made(20, 2, 1.5, -1.0)):
        changes = np.abs(other - whole).reshape(4, 18, 4, 26).mean(axis=(1, 3))
        assert (changes > 1e-4).all()


def test_strides_that_are_no_powers_of_two_are_found_among_the_divisors_of_the_fields_in_training():
    fields = whole_fields("sixths", (48, 48, 1))[0]
    assert fields.step == 6
    whole, small = (drawn(fields, (132, 90), tile)[0] for tile in (10**6, 20))
    np.testing.assert_allclose(small, whole, rtol=0, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("periodic", ["width", "both"])
def test_tiles_of_a_periodic_field_see_its_other_end(periodic):
    keras.utils.set_random_seed(0)
    spec = DataSpec((32, 32, 1), 10, input_shape=(8, 8, 2), constants_shape=(32, 32, 1))
    recipe = Downscale(DownscaleOptions(nf=2, blocks=1, noise_channels=2, periodic=periodic), spec)
    networks = recipe.networks()
    fields = WholeFields(recipe, Nets(networks, training=False), seed=1)
    assert fields.periodic == (periodic == "both", True)
    rng = np.random.default_rng(0)

    def field(*shape):
        return rng.normal(size=(1, *shape)).astype(np.float32)

    def made(tile, parts):
        out, tiles = np.full((96, 136, 1), np.nan, np.float32), fields.tiles((96, 136), tile)
        for each in tiles:
            out[each.region] = fields(0, each, parts)
        return out, len(tiles)

    parts = {"inputs": field(24, 34, 2), "constants": field(96, 136, 1)}
    whole, count = made(10**6, parts)
    assert count == 1
    for tile in (12, 40):  # the height, of which a window may be all, and the width
        np.testing.assert_allclose(made(tile, parts)[0], whole, rtol=0, atol=1e-5)
    moved = {name: np.roll(each, each.shape[2] // 2, axis=2) for name, each in parts.items()}
    np.testing.assert_allclose(made(40, moved)[0], made(10**6, moved)[0], rtol=0, atol=1e-5)


def test_networks_of_another_size_have_the_layers_and_the_averages_of_the_trained_ones():
    networks = whole_fields("nested")[1]
    network, numbers = networks["generator"], np.random.default_rng(0).normal(size=(1, 64, 40, 1))
    images, noise = tf.constant(numbers, tf.float32), tf.zeros((1, 32, 20, 2))
    averages = [(variable, variable.value + 0.1) for variable in network.variables]

    def made(values=None):
        return AnySizeNets(Nets(networks, training=False, values=values)).generator([images, noise])

    averaged = made({"generator": averages})
    assert np.abs(made() - averaged).max() > 0.01
    for variable, average in averages:
        variable.assign(average)
    np.testing.assert_array_equal(made(), averaged)
    corner = network([images[:, :32, :32], noise[:, :16, :16]])  # whose upper left edge is the same
    np.testing.assert_allclose(corner[:, :12, :12], averaged[:, :12, :12], atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("norm", "generator, layer over_all: "),
        ("attention", "generator, layer attends: "),
        ("pool", "generator, layer pooled: "),
        ("dense", "generator, layer flat: "),
        ("fixed", "generator, layer same_size: "),
        ("ramp", "draw.*or on the place"),
    ],
)
def test_networks_that_depend_on_the_whole_field_or_on_its_size_are_refused_by_name(kind, named):
    with pytest.raises(UserError, match=named):
        whole_fields(kind)


def test_numbers_belong_to_places_and_to_samples():
    def numbers(first, size, number=0, key="noise", shape=None, whole=(60, 70)):
        ends = (tf.constant(each, tf.int64) for each in (first, whole))
        random = PlaceRandom(3, tf.constant([number], tf.int64), first=next(ends), size=size, whole=next(ends))
        return random.normal(key, shape or (2 * size[0], 2 * size[1], 3)).numpy()[0]

    whole = numbers((0, 0), (60, 70))
    np.testing.assert_array_equal(numbers((14, 22), (20, 24)), whole[28:68, 44:92])
    coarse = numbers((0, 0), (60, 70), shape=(30, 35, 3))
    np.testing.assert_array_equal(numbers((14, 22), (20, 24), shape=(10, 12, 3)), coarse[7:17, 11:23])
    around = numbers((-6, 64), (20, 24))  # of which both axes are periodic
    np.testing.assert_array_equal(around, np.roll(whole, (12, -128), (0, 1))[:40, :48])
    assert abs(whole.mean()) < 0.03 and abs(whole.std() - 1) < 0.03
    assert len(np.unique(whole)) > 0.99 * whole.size  # no two blocks are equal
    for other in (numbers((0, 0), (60, 70), number=1), numbers((0, 0), (60, 70), key="other")):
        assert abs(np.corrcoef(other.ravel(), whole.ravel())[0, 1]) < 0.05
    np.testing.assert_array_equal(numbers((0, 0), (20, 24), shape=(5,)), numbers((14, 22), (20, 24), shape=(5,)))
