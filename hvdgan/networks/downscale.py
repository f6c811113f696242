"""The networks of conditional super-resolution of fields (Leinonen et al. 2020, Harris et al. 2022), of any size."""

import dataclasses
from typing import Literal

import keras
from keras import layers

from hvdgan.errors import UserError

Shape = tuple[int, ...]
Periodic = Literal["none", "width", "both"]
_MOST_WIDENING = 8  # widest layer / nf
_SMALLEST_SIDE = 4  # of the critic's last features (pixels)
_SMALL = 0.02  # variance with which a residual block begins


def doublings(image_shape: Shape, input_shape: Shape | None) -> int:
    """How often an input (h, w, c) must be doubled in height and width to reach the size of its image, (H, W, C)."""
    if input_shape is None or len(image_shape) != 3 or len(input_shape) != 3:
        raise UserError(
            f"--recipe downscale: samples of shape {image_shape} with inputs {input_shape}; expected fields (H, W, C) "
            "with inputs (h, w, c), which --axes and --input-axes name"
        )
    factor = image_shape[0] // input_shape[0]
    fits = all(size == factor * small for size, small in zip(image_shape[:2], input_shape[:2], strict=True))
    if not fits or factor & (factor - 1):
        raise UserError(
            f"--recipe downscale: fields of {image_shape[0]} x {image_shape[1]} with inputs of {input_shape[0]} x "
            f"{input_shape[1]}; expected height and width to be the same power of two times those of the inputs; "
            "coarsen or crop the fields so that they are"
        )
    return factor.bit_length() - 1


def downscaling_generator(
    *, image_shape: Shape, input_shape: Shape, constants: int, noise: int, nf: int, blocks: int, periodic: Periodic
) -> keras.Model:
    """Low-resolution inputs and noise to fields: residual blocks, then doublings, then the constants join.

    The network adds to a linear function of the interpolated inputs, so that it has to learn the small scales only.

    Args:
        image_shape: shape of an image, (H, W, C).
        input_shape: shape of its input, (h, w, c), with H / h = W / w a power of two.
        constants: number of constant fields, K; 0: the model has no such input.
        noise: number of noise channels, n.
        nf: width of the layers at the size of the image, doubled at each halving, up to 8 nf.
        blocks: number of residual blocks at the size of the input.
        periodic: axes whose two ends are neighbours: none, the width, or height and width.

    Returns:
        A model [(B, h, w, c) inputs, (B, h, w, n) noise, (B or 1, H, W, K) constants] -> (B, H, W, C) images.

    Reference: Leinonen et al. 2020 (arXiv:2005.10374), section III; Harris et al. 2022 (arXiv:2204.02028), section 3.
    """
    depth = doublings(image_shape, input_shape)
    make = _Layers(periodic)
    inputs = keras.Input(input_shape, name="inputs")
    drawn = keras.Input((*input_shape[:2], noise), name="noise")
    x = layers.Concatenate(name="inputs_and_noise")([inputs, drawn])
    x = make.conv(x, _width(nf, depth), "from_inputs")  # (B, h, w, width)
    for number in range(blocks):
        x = make.residual(x, f"block_{number}")
    coarse = inputs
    for left in reversed(range(depth)):
        x = make.residual(make.double(x, _width(nf, left), f"up_{left}"), f"up_{left}_block")
        coarse = make.interpolated(coarse, f"coarse_{left}")
    all_inputs = [inputs, drawn]
    if constants:
        fields = keras.Input((*image_shape[:2], constants), name="constants")
        all_inputs.append(fields)
        # The same as a convolution of both together, and computed once for all samples of a batch.
        x = layers.Add(name="join_constants")(
            [make.conv(x, nf, "join"), make.conv(fields, nf, "from_constants", bias=False)]
        )
    x = make.conv(make.residual(x, "last_block"), image_shape[-1], "to_images", before=True)
    x = layers.Add(name="sum")([x, layers.Conv2D(image_shape[-1], 1, use_bias=False, name="of_coarse")(coarse)])
    return keras.Model(all_inputs, layers.Activation("linear", dtype="float32", name="images")(x), name="generator")


def downscaling_critic(
    *, image_shape: Shape, input_shape: Shape, constants: int, nf: int, periodic: Periodic
) -> keras.Model:
    """Fields, together with the inputs and the constants, to scores, by strided convolutions without BatchNorm.

    Args:
        nf: half the width of the first layer, which is doubled at each halving, up to 8 nf.
        The others: as of the generator.

    Returns:
        A model [(B, H, W, C) images, (B, h, w, c) inputs, (B or 1, H, W, K) constants] -> (B,) scores.
    """
    factor = 2 ** doublings(image_shape, input_shape)
    make = _Layers(periodic)
    images = keras.Input(image_shape, name="images")
    inputs = keras.Input(input_shape, name="inputs")
    grown = layers.UpSampling2D(factor, name="grown")(inputs)
    x = layers.Concatenate(name="images_and_inputs")([images, grown])
    x = make.conv(x, 2 * nf, "halve_0", strides=2)
    all_inputs = [images, inputs]
    if constants:
        fields = keras.Input((*image_shape[:2], constants), name="constants")
        all_inputs.append(fields)
        joined = make.conv(fields, 2 * nf, "from_constants", strides=2, bias=False)
        x = layers.Add(name="join_constants")([x, joined])
    depth = 1
    while min(x.shape[1:3]) > _SMALLEST_SIDE:
        depth += 1
        x = make.conv(x, _width(nf, depth), f"halve_{depth - 1}", strides=2, before=True)
    x = make.conv(x, _width(nf, depth), "last", before=True)
    x = layers.GlobalAveragePooling2D(name="mean")(_relu(x, "mean_relu"))
    scores = layers.Reshape((), dtype="float32", name="scores")(layers.Dense(1, name="to_score")(x))
    return keras.Model(all_inputs, scores, name="critic")


def _width(nf: int, depth: int) -> int:
    return nf * min(2**depth, _MOST_WIDENING)


def _relu(x: keras.KerasTensor, name: str) -> keras.KerasTensor:
    return layers.LeakyReLU(0.2, name=name)(x)


@dataclasses.dataclass(frozen=True)
class _Layers:
    """Layers that see beyond the edges of a field what is there: the other end of a periodic axis, or zeros."""

    periodic: Periodic

    def conv(
        self,
        x: keras.KerasTensor,
        width: int,
        name: str,
        *,
        strides: int = 1,
        bias: bool = True,
        before: bool = False,
        scale: float = 2.0,
    ) -> keras.KerasTensor:
        """3 x 3, or 4 x 4 with stride 2; `before`: after a LeakyReLU; `scale`: variance of output / input, times 2."""
        if before:
            x = _relu(x, f"{name}_relu")
        return layers.Conv2D(
            width,
            4 if strides == 2 else 3,
            strides=strides,
            padding="same" if self.periodic == "none" else "valid",
            use_bias=bias,
            # One initializer per layer: it draws its seed when it is created; with one seed layers have equal weights.
            kernel_initializer=keras.initializers.VarianceScaling(scale, "fan_in", "truncated_normal"),
            name=name,
        )(self._widened(x, name))

    def residual(self, x: keras.KerasTensor, name: str) -> keras.KerasTensor:
        """x + f(x) with two convolutions; f begins small, so that a deep network begins as a shallow one."""
        width = x.shape[-1]
        inner = self.conv(x, width, f"{name}_1", before=True)
        inner = self.conv(inner, width, f"{name}_2", before=True, scale=_SMALL)
        return layers.Add(name=f"{name}_sum")([x, inner])

    def double(self, x: keras.KerasTensor, width: int, name: str) -> keras.KerasTensor:
        """Twice as high and wide. Growing pixels instead would leave no power where their own spectrum is zero."""
        weights = keras.initializers.VarianceScaling(8.0, "fan_out", "truncated_normal")  # a pixel sees 4 of 16 weights
        twice = layers.Conv2DTranspose(width, 4, strides=2, padding="same", kernel_initializer=weights, name=name)
        return self._narrowed(twice(self._widened(_relu(x, f"{name}_relu"), name)), name)

    def interpolated(self, x: keras.KerasTensor, name: str) -> keras.KerasTensor:
        """Twice as high and wide by bilinear interpolation."""
        twice = layers.UpSampling2D(interpolation="bilinear", name=name)
        return self._narrowed(twice(self._widened(x, name)), name)

    def _widened(self, x: keras.KerasTensor, name: str) -> keras.KerasTensor:
        """With one more pixel at each edge."""
        if self.periodic == "none":
            return x
        x = layers.Concatenate(axis=2, name=f"{name}_wrap_width")([x[:, :, -1:], x, x[:, :, :1]])
        if self.periodic == "width":
            return layers.ZeroPadding2D(((1, 1), (0, 0)), name=f"{name}_pad")(x)
        return layers.Concatenate(axis=1, name=f"{name}_wrap_height")([x[:, -1:], x, x[:, :1]])

    def _narrowed(self, x: keras.KerasTensor, name: str) -> keras.KerasTensor:
        """Without what the pixels of _widened() have become at twice the size."""
        return x if self.periodic == "none" else layers.Cropping2D(2, name=f"{name}_crop")(x)
