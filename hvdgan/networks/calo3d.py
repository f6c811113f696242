"""Networks for showers in a calorimeter, in the manner of 3DGAN (Khattak et al. 2022, arXiv:2109.07388)."""

from collections.abc import Callable

import keras
from keras import layers, ops

from hvdgan.errors import UserError

Shape = tuple[int, int, int]

_HIDDEN = 128  # width of the dense layers; the conditions and profiles that they read do not grow with the cells
_COARSEST = 4  # cells of the shortest axis where the generator begins
_FIRST_SPREAD = -4.0  # exp(-4) is 2 %
_LEAST_SPREAD = 1e-3
_TINY = 1e-6


def calo3d_generator(
    *,
    shape: tuple[int, ...],
    latent_size: int,
    nf: int,
    num_conditions: int,
    features: Callable[[keras.KerasTensor], tuple[keras.KerasTensor, keras.KerasTensor]],
    exponent: float,
) -> keras.Model:
    """Latents, noise and conditions to showers by transposed convolutions.

    The convolutions return the shape of a shower, which is then scaled to a total energy of its own: the energy of the
    particle times a response, whose mean and deviation depend on the conditions; the first latent is its fluctuation.

    Args:
        shape: shape of a shower, (D, H, W, 1); each of D, H and W at least 4.
        latent_size: length of a latent vector.
        nf: width of the layer before the last.
        num_conditions: number k of conditions.
        features: function of the conditions (B, k) that returns what dense layers read, (B, n), and the energy of the
            particle in the unit of the deposits, (B, 1), above 0. It is made of operations of Keras.
        exponent: exponent p of the map value = energy ** p from the energy of a cell to what networks see, above 0.

    Returns:
        A model [(B, latent_size), (B, D, H, W, 1), (B, k)] -> (B, D, H, W, 1) float32 from 0 up, as networks see it.
    """
    size, halvings = _checked(shape)
    latents = keras.Input((latent_size,), name="latents")
    noise = keras.Input(shape, name="noise")
    conditions = keras.Input((num_conditions,), name="conditions")
    known, energy = features(conditions)
    start = layers.Concatenate(name="start")([latents, known])
    style = _dense(_dense(start, _HIDDEN, "style_1"), _HIDDEN, "style_2")

    x = _grown(style, size, nf, halvings)
    total = ops.exp(_response(known, latents)) * energy
    showers = _scaled(_cells(x, noise, style, size), total, exponent)
    return keras.Model([latents, noise, conditions], showers, name="generator")


def calo3d_discriminator(*, shape: tuple[int, ...], nf: int, num_features: int, num_angles: int) -> keras.Model:
    """Showers to logits, with heads that estimate the energy, the other conditions and the sum of deposits.

    The heads of the energy and of the angles see the shower alone; those of the deposits and of the profiles see the
    conditions alone.

    Args:
        shape: shape of a shower, (D, H, W, 1); each of D, H and W at least 4.
        nf: width of the first layer.
        num_features: number n of features of the conditions.
        num_angles: number of conditions besides the energy.

    Returns:
        A model of four inputs: `cells` (B, D, H, W, 1), the cells' shares in the deposits, on a scale for dense layers;
        `seen_profiles` (B, D + H + W), those of the layers, rows and columns; `response` (B, 1), log(deposits /
        energy); and `features` (B, n) of the conditions. It returns a dict, all float32, with `logits` (B,); `energy`
        (B,), an estimate of log(energy / deposits); `deposits` and `spread` (B,), estimates of the median response of
        real showers and of its median absolute deviation, and `fake_spread` (B,), that of generated ones; `profiles`
        and `fake_profiles` (B, D + H + W), estimates of the logarithms of the mean shares of layers, rows and columns
        in real and in generated showers; and, if there are angles, `angles` (B, num_angles), estimates of the
        conditions as networks see them.
    """
    size, halvings = _checked(shape)
    cells = keras.Input(shape, name="cells")
    profiles = keras.Input((sum(size),), name="seen_profiles")
    response = keras.Input((1,), name="response")
    features = keras.Input((num_features,), name="features")

    x = cells
    for number in range(1, halvings + 1):
        x = layers.Conv3D(
            nf << (number - 1), 3, strides=2, padding="same", kernel_initializer=_weights(), name=f"down_{number}"
        )(x)
        x = layers.LeakyReLU(0.2, name=f"down_{number}_relu")(x)
    x = layers.Concatenate(name="shower")([layers.Flatten(name="flat")(x), profiles])
    shower = _dense(x, _HIDDEN, "shower_1")
    outputs = {"energy": _number(_dense(shower, 32, "energy_1"), "energy")}
    if num_angles:
        outputs["angles"] = layers.Dense(num_angles, dtype="float32", name="angles")(_dense(shower, 32, "angles_1"))

    excess = _expectations(features, response, size, outputs)
    joint = layers.Concatenate(name="joint")([shower, profiles, excess, features])
    outputs["logits"] = _number(_dense(_dense(joint, _HIDDEN, "joint_1"), _HIDDEN, "joint_2"), "logits")
    return keras.Model([cells, profiles, response, features], outputs, name="discriminator")


def _grown(style: keras.KerasTensor, size: Shape, nf: int, halvings: int) -> keras.KerasTensor:
    """Features of all cells, (B, D, H, W, nf), from styles (B, n) by transposed convolutions."""
    base, width = [-(-length >> halvings) for length in size], nf << halvings
    x = _dense(style, base[0] * base[1] * base[2] * width, "from_style")
    x = layers.Reshape((*base, width), name="block_0")(x)
    for number in range(1, halvings + 1):
        width //= 2
        # A kernel of 4 covers all cells equally; on CPUs this takes half the time of an enlargement and a convolution.
        x = layers.Conv3DTranspose(
            width, 4, strides=2, padding="same", kernel_initializer=_weights(), name=f"up_{number}"
        )(x)
        x = layers.LeakyReLU(0.2, name=f"block_{number}")(x)  # (B, D, H, W of this size, width)
    if x.shape[1:4] != size:  # sides that cannot be halved so often were rounded up
        x = x[:, : size[0], : size[1], : size[2]]
    return x


def _cells(x: keras.KerasTensor, noise: keras.KerasTensor, style: keras.KerasTensor, size: Shape) -> keras.KerasTensor:
    """The shape of a shower, (B, D, H, W, 1) float32 from 0 up, of features (B, D, H, W, C)."""
    x = layers.Conv3D(2, 3, padding="same", kernel_initializer=_weights(), bias_initializer="ones", name="to_cells")(x)
    x = layers.Activation("linear", dtype="float32", name="means_and_deviations")(x)
    x = layers.ReLU(dtype="float32", name="cells")(x[..., :1] + x[..., 1:] * noise)
    x = ops.square(x)  # the largest cells are thousands of times the smallest
    for axis, letter in enumerate("dhw"):
        gains = layers.Dense(size[axis], kernel_initializer="zeros", dtype="float32", name=f"gains_{letter}")(style)
        places = [size[axis] if axis == each else 1 for each in range(3)]
        x = x * ops.reshape(ops.exp(gains), (-1, *places, 1))
    return x


def _scaled(x: keras.KerasTensor, total: keras.KerasTensor, exponent: float) -> keras.KerasTensor:
    """Scale showers (B, D, H, W, 1), as networks see them, to their sums of energies (B, 1)."""
    summed = ops.sum(ops.power(x, 1.0 / exponent), axis=(1, 2, 3))
    scales = ops.power(total / (summed + _TINY), exponent)
    return layers.Activation("linear", dtype="float32", name="showers")(x * ops.reshape(scales, (-1, 1, 1, 1, 1)))


def _response(known: keras.KerasTensor, latents: keras.KerasTensor) -> keras.KerasTensor:
    """Logarithm of the deposits over the energy, (B, 1): normal, with the first latent as its fluctuation."""
    given = _dense(_dense(known, 32, "response_1", dtype="float32"), 32, "response_2", dtype="float32")
    response = layers.Dense(1, kernel_initializer="zeros", dtype="float32", name="response")(given)
    spread = keras.initializers.Constant(_FIRST_SPREAD)
    spread = layers.Dense(1, kernel_initializer="zeros", bias_initializer=spread, dtype="float32", name="spread")(given)
    return response + ops.exp(spread) * latents[:, :1]


def _expectations(
    features: keras.KerasTensor, response: keras.KerasTensor, size: Shape, outputs: dict[str, keras.KerasTensor]
) -> keras.KerasTensor:
    """Add the heads that see the conditions alone; returns how far the response exceeds theirs, (B, 1)."""
    known = _dense(_dense(features, 32, "deposits_1", dtype="float32"), 32, "deposits_2", dtype="float32")
    expected = layers.Dense(1, kernel_initializer="zeros", dtype="float32", name="deposits_3")(known)
    spreads = layers.Dense(2, "softplus", kernel_initializer="zeros", dtype="float32", name="spreads")(known)
    spread = spreads[:, :1]
    outputs["deposits"] = layers.Reshape((), dtype="float32", name="deposits")(expected)
    outputs["spread"] = layers.Reshape((), dtype="float32", name="spread")(spread)
    outputs["fake_spread"] = layers.Reshape((), dtype="float32", name="fake_spread")(spreads[:, 1:])
    for name in ("profiles", "fake_profiles"):
        outputs[name] = _log_shares(features, size, name)
    # In units of its usual fluctuation, which differs by calorimeter and energy.
    return (response - ops.stop_gradient(expected)) / (ops.stop_gradient(spread) + _LEAST_SPREAD)


def _log_shares(features: keras.KerasTensor, size: Shape, name: str) -> keras.KerasTensor:
    """Logarithms of the mean shares of layers, rows and columns, (B, D + H + W); those of each axis sum to 1."""
    x = features
    for number in (1, 2):
        x = _dense(x, _HIDDEN, f"{name}_{number}", dtype="float32")
    axes = [layers.Dense(length, dtype="float32", name=f"{name}_{a}")(x) for length, a in zip(size, "dhw", strict=True)]
    return layers.Concatenate(dtype="float32", name=name)([ops.log_softmax(axis, axis=-1) for axis in axes])


def _checked(shape: tuple[int, ...]) -> tuple[Shape, int]:
    """The depth, height and width of a shower, and how often they are halved."""
    if len(shape) != 4 or shape[3] != 1:
        raise UserError(
            f"the recipe takes volumes (D, H, W, 1), and the data have samples of shape {shape}; "
            "name the axes of one channel, as in --axes DHW"
        )
    size = (shape[0], shape[1], shape[2])
    if min(size) < _COARSEST:
        raise UserError(
            f"the recipe takes volumes whose sides have {_COARSEST} cells at least, and the data have {size}"
        )
    halvings = 2
    rounds = any(length % 4 for length in size)
    while min(size) >> (halvings + 1) >= _COARSEST and (rounds or all(each % (2 << halvings) == 0 for each in size)):
        halvings += 1
    return size, halvings


def _dense(x: keras.KerasTensor, width: int, name: str, dtype: str | None = None) -> keras.KerasTensor:
    x = layers.Dense(width, kernel_initializer=_weights(), dtype=dtype, name=name)(x)
    return layers.LeakyReLU(0.2, dtype=dtype, name=f"{name}_relu")(x)


def _number(x: keras.KerasTensor, name: str) -> keras.KerasTensor:
    return layers.Reshape((), dtype="float32", name=name)(layers.Dense(1, dtype="float32", name=f"{name}_2")(x))


def _weights() -> keras.initializers.Initializer:
    # One initializer per layer: it draws its seed when it is created, and layers with one seed have equal weights.
    return keras.initializers.HeNormal()
