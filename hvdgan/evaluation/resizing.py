"""Resizes pictures for a feature network, in one of the two ways that published distances use."""

from typing import Literal

import tensorflow as tf

Method = Literal["clean", "legacy"]
"""clean: antialiased bicubic; legacy: the bilinear resizing of TensorFlow 1, which skips pixels"""


def resize(pictures: tf.Tensor, size: tuple[int, int], method: Method) -> tf.Tensor:
    """Resize pictures in float32, without rounding.

    `clean` equals Pillow's bicubic filter on single channels in mode F, up to float32 rounding, clipped to 0 to 255 as
    in clean-fid: the filter overshoots at edges by up to 40. `legacy` has neither antialiasing nor centred pixels, and
    is what FID used at first, inside the Inception graph.

    Reference:
        Parmar et al. 2022, "On Aliased Resizing and Surprising Subtleties in GAN Evaluation".
    """
    if tuple(pictures.shape[1:3]) == size:
        return pictures
    if method == "legacy":
        return tf.raw_ops.ResizeBilinear(images=pictures, size=size, align_corners=False, half_pixel_centers=False)
    # Its operation, ScaleAndTranslate, has a kernel for CPUs only, of one thread. With a GPU, TensorFlow copies the
    # small pictures to the CPU and the large ones back. Two matrix products would stay on the GPU, but compute in
    # TensorFloat-32 there, with an error of 0.1 of 255.
    return tf.clip_by_value(tf.image.resize(pictures, size, "bicubic", antialias=True), 0.0, 255.0)
