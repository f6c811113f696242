"""Horovod with its defaults, as its TensorFlow 2 example uses it, and with what Keras 3 needs instead.

Keras' own variables are handed over as the tf.Variables inside them; one broadcast before the first step.
"""

import os
from collections.abc import Sequence

import horovod.tensorflow as hvd
import keras
import tensorflow as tf
import work as common
from keras_gan import Trainer, pool


def gradients(tape: tf.GradientTape, loss: tf.Tensor, variables: Sequence[keras.Variable]) -> list[tf.Tensor]:
    """Averaged over the ranks."""
    return hvd.DistributedGradientTape(tape).gradient(loss, [variable.value for variable in variables])


def main() -> None:
    """Train on one of the ranks."""
    work = common.parse()
    # Before Horovod starts its thread, which stays on the rank's core then.
    common.pin(int(os.environ.get("HOROVOD_LOCAL_RANK", os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", 0))))
    hvd.init()
    trainer, batches = Trainer(work, gradients), pool(work, hvd.rank())
    hvd.broadcast_variables([variable.value for variable in trainer.variables], root_rank=0, inplace=False)
    step = tf.function(trainer.step)
    common.train(
        work, hvd.rank(), trainer.parameters(), lambda number: step(batches[number % len(batches)]), trainer.weights
    )


if __name__ == "__main__":
    main()
