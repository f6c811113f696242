"""Computes hvdgan's fused BatchNorm and Keras' own on the device of this process; tests/gpu compares them.

python -m norms FILE.npz
"""

import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from hvdgan.distributed import joining
from hvdgan.networks.fast.kernels import FusedBatchNormalization

SHAPE = (8, 6, 4, 5)


def main(out: Path) -> None:
    """Write outputs, gradients and statistics as float32 under TYPE/KIND/NAME, and the device of an output."""
    joining.claim()
    found, device = {}, ""
    for dtype, policy in (("float32", "float32"), ("float16", "mixed_float16"), ("bfloat16", "mixed_bfloat16")):
        for kind, layer in (("hvdgan", FusedBatchNormalization), ("keras", keras.layers.BatchNormalization)):
            for name, value in computed(layer, policy, dtype).items():
                found[f"{dtype}/{kind}/{name}"] = tf.cast(value, tf.float32).numpy()
                device = value.device if name == "output" else device
    np.savez(out, device=device, **found)


def computed(kind: type[keras.layers.BatchNormalization], policy: str, dtype: str) -> dict[str, tf.Tensor]:
    """The output of a layer in training, the gradients of an uneven loss, and the moving statistics."""
    draw = np.random.default_rng(1)
    layer = kind(momentum=0.9, epsilon=1e-5, dtype=policy)
    layer.build(SHAPE)
    layer.set_weights([draw.normal(size=weight.shape) ** 2 + 0.5 for weight in layer.get_weights()])
    images = tf.cast(draw.normal(2.0, 3.0, SHAPE), dtype)
    uneven = tf.cast(draw.normal(size=SHAPE), tf.float32)

    @tf.function(autograph=False)
    def run() -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            tape.watch(images)
            output = layer(images, training=True)
            loss = tf.reduce_mean(uneven * tf.cast(output, tf.float32) ** 2)
        return output, tape.gradient(loss, [images, layer.gamma.value, layer.beta.value])

    output, (of_images, gamma, beta) = run()
    moving = {"moving_mean": layer.moving_mean.value, "moving_variance": layer.moving_variance.value}
    return {"output": output, "images": of_images, "gamma": gamma, "beta": beta, **moving}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
