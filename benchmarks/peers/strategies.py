"""Trains under a strategy of tf.distribute; Keras' optimizers sum gradients over its replicas."""

import sys
from collections.abc import Sequence

import keras
import tensorflow as tf
import work as common
from keras_gan import Trainer, pool, total


def train(work: common.Work, strategy: tf.distribute.Strategy, rank: int) -> None:
    """Train on all replicas of this process.

    Args:
        work: settings of the run; batch_size is that of one replica.
        strategy: strategy whose devices are set up.
        rank: rank of this process.
    """
    replicas = strategy.num_replicas_in_sync

    def gradients(tape: tf.GradientTape, loss: tf.Tensor, variables: Sequence[keras.Variable]) -> list[tf.Tensor]:
        values = [variable.value for variable in variables]
        return tape.gradient(loss, values, output_gradients=tf.constant(1.0 / replicas))

    with strategy.scope():
        trainer = Trainer(work, gradients)
    pools = [pool(work, rank + replica) for replica in range(replicas)]
    batches = [
        strategy.experimental_distribute_values_from_function(
            lambda context, at=at: pools[context.replica_id_in_sync_group % replicas][at]
        )
        for at in range(common.POOL)
    ]

    @tf.function
    def step(pixels: tf.Tensor) -> list[tf.Tensor]:
        losses = strategy.run(trainer.step, args=(pixels,))
        return [strategy.experimental_local_results(loss)[0] for loss in losses]

    def weights() -> list[float]:
        held = [strategy.experimental_local_results(variable.value) for variable in trainer.trained]
        sums = [[total(values) for values in replicas] for replicas in held]
        if any(len(set(each)) > 1 for each in sums):
            sys.exit(f"rank {rank}: the replicas do not hold the same weights in the end")
        return [each[0] for each in sums]

    common.train(work, rank, trainer.parameters(), lambda number: step(batches[number % len(batches)]), weights)
