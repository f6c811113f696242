"""Horovod with its defaults, as in its TensorFlow 2 example, adapted to Keras 3.

Horovod gets the tf.Variables inside of Keras' variables; one broadcast before the first step.
"""

import os
from collections.abc import Sequence

import horovod.tensorflow as hvd
import keras
import tensorflow as tf
import work as common
from keras_gan import Trainer, pool


def gradients(tape: tf.GradientTape, loss: tf.Tensor, variables: Sequence[keras.Variable]) -> list[tf.Tensor]:
    """Average the gradients over the ranks."""
    return hvd.DistributedGradientTape(tape).gradient(loss, [variable.value for variable in variables])


def main() -> None:
    """Train on one of the ranks."""
    work = common.parse()
    # Before hvd.init(), so that Horovod's thread stays on the rank's core.
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
