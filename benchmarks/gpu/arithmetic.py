"""Checks the arithmetic of a GAN's step against float64: python -m gpu.arithmetic [--cpu] [--exact]

Convolutions, a product of matrices, BatchNorm and leaky ReLU with their gradients, in each precision. An error
is the norm of the difference over the norm of what float64 computes on the CPU of the same rounded inputs. A line
of JSON for each check goes to the standard output. --exact checks float32 without TF32, which the environment variable
NVIDIA_TF32_OVERRIDE=0 turns off: a process keeps the kernels that it has once chosen for a convolution.
"""

import json
import sys

import numpy as np
import tensorflow as tf

from hvdgan.distributed import cuda

cuda.load_libraries()
# In float32 a GPU computes convolutions and products in TF32, with 10 bits of the mantissa.
BOUNDS = {"float32": 2e-3, "float32 without TF32": 1e-5, "bfloat16": 2e-2, "float16": 3e-3}
SHAPES = [(16, 32, 32, 24), (5, 5, 24, 40), (4, 4, 24, 40), (4, 4, 40, 24), (384, 512), (512, 256)]
NAMES = ["convolution", "strided", "transposed", "product", "BatchNorm", "leaky ReLU"]


@tf.function
def plain(*inputs: tf.Tensor) -> list[tf.Tensor]:
    """The operations, and the gradients of the mean squares of their results."""
    x, kernel, strided, transposed, a, b = inputs
    wide = tf.float64 if x.dtype == tf.float64 else tf.float32  # for statistics, as Keras has them
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        down = tf.nn.conv2d(x, strided, 2, "SAME")
        if wide == tf.float64:
            mean, variance = tf.nn.moments(x, (0, 1, 2))
            normed = (x - mean) / tf.sqrt(variance + 1e-3)
        else:
            normed, *_ = tf.compat.v1.nn.fused_batch_norm(x, tf.ones(24), tf.zeros(24))
        up = tf.nn.conv2d_transpose(x, transposed, (16, 64, 64, 40), 2, "SAME")
        outs = [tf.nn.conv2d(x, kernel, 1, "SAME"), down, up, a @ b, normed, tf.nn.leaky_relu(down, 0.2)]
        loss = sum(tf.reduce_mean(tf.cast(out, wide) ** 2) for out in outs)
    return [*outs, *tape.gradient(loss, inputs)]


def main(device: str, *, exact: bool) -> int:
    """Compare, print, and return 1 if an error is too large."""
    random = np.random.default_rng(0)
    numbers = [tf.constant(random.standard_normal(shape)) for shape in SHAPES]
    failed = False
    for dtype in (tf.float32,) if exact else (tf.float32, tf.bfloat16, tf.float16):
        rounded = [tf.cast(each, dtype) for each in numbers]
        with tf.device("CPU:0"):
            true = plain(*[tf.cast(each, tf.float64) for each in rounded])
        with tf.device(device):
            found = plain(*[tf.identity(each) for each in rounded])
        pairs = zip([*NAMES, *(f"gradient {n}" for n in range(6))], found, true, strict=True)
        errors = {what: float(tf.norm(tf.cast(mine, tf.float64) - t) / tf.norm(t)) for what, mine, t in pairs}
        name = f"{dtype.name} without TF32" if exact else dtype.name
        passed = all(error <= BOUNDS[name] for error in errors.values())  # NaN is not
        failed |= not passed
        print(json.dumps({"name": name, "passed": passed, "bound": BOUNDS[name], "errors": errors}), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main("CPU:0" if "--cpu" in sys.argv else "GPU:0", exact="--exact" in sys.argv))
