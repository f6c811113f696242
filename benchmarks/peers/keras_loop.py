"""One process with Keras and a tf.function."""

import tensorflow as tf
import work as common
from keras_gan import Trainer, pool


def main() -> None:
    """Train."""
    work = common.parse()
    common.pin(0, work.device)
    trainer, batches = Trainer(work), pool(work, 0)
    step = tf.function(trainer.step)
    common.train(work, 0, trainer.parameters(), lambda number: step(batches[number % len(batches)]), trainer.weights)


if __name__ == "__main__":
    main()
