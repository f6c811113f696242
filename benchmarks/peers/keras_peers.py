"""The same networks in plain Keras, alone and over ranks: `python keras_peers.py PROGRAM WORK`, with the work as JSON.

keras, keras-jit: one process and a tf.function. horovod: Horovod with its defaults, as in its TensorFlow 2 example,
adapted to Keras 3. multiworker: MultiWorkerMirroredStrategy with its defaults; TF_CONFIG names the workers. mirrored:
MirroredStrategy, one process for all devices. StyleGAN2 is in keras_stylegan2.py, for one process.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence

import keras
import keras_stylegan2
import tensorflow as tf
from keras import layers
from work import ADAM, CHANNELS, LATENT_SIZE, POOL, Work, pin, train

from hvdgan.distributed import cuda

cuda.load_libraries()  # TensorFlow 2.21 does not find one of them by itself
Gradients = Callable[[tf.GradientTape, tf.Tensor, Sequence[keras.Variable]], Sequence[tf.Tensor]]


def networks(work: Work) -> tuple[keras.Model, keras.Model]:
    """Generator (B, latent_size) -> (B, H, W, C), and discriminator (B, H, W, C) -> (B, 1, 1, 1) logits."""
    normal = keras.initializers.RandomNormal
    around_one = {"gamma_initializer": normal(1.0, 0.02), "momentum": 0.9, "epsilon": 1e-5}
    up: list[layers.Layer] = [keras.Input((LATENT_SIZE,)), layers.Reshape((1, 1, LATENT_SIZE))]
    for depth, width in enumerate(reversed(work.widths)):
        how = {"strides": 2, "padding": "same"} if depth else {"strides": 1, "padding": "valid"}
        up += [layers.Conv2DTranspose(width, 4, use_bias=False, kernel_initializer=normal(stddev=0.02), **how)]
        up += [layers.BatchNormalization(**around_one), layers.ReLU()]
    up += [layers.Conv2DTranspose(CHANNELS, 4, strides=2, padding="same", kernel_initializer=normal(stddev=0.02))]
    up += [layers.Activation("tanh", dtype="float32")]

    down: list[layers.Layer] = [keras.Input((work.image_size, work.image_size, CHANNELS))]
    for depth, width in enumerate(work.widths):
        kernel = {"use_bias": not depth, "kernel_initializer": normal(stddev=0.02)}
        down += [layers.Conv2D(width, 4, strides=2, padding="same", **kernel)]
        down += [layers.BatchNormalization(**around_one)] if depth else []
        down += [layers.LeakyReLU(0.2)]
    down += [layers.Conv2D(1, 4, kernel_initializer=normal(stddev=0.02)), layers.Activation("linear", dtype="float32")]
    return keras.Sequential(up), keras.Sequential(down)


class Trainer:
    """Both networks with their optimizers, built, and the step that trains them.

    Args:
        work: settings of the run; its precision becomes Keras' policy.
        gradients: function of a tape, a loss and variables, which returns the gradients to apply.
    """

    def __init__(self, work: Work, gradients: Gradients) -> None:
        keras.mixed_precision.set_global_policy(work.precision)
        self.batch_size, self.gradients = work.batch_size, gradients
        self.networks = self.generator, self.discriminator = networks(work)
        self.optimizers = [keras.optimizers.Adam(**ADAM) for _ in self.networks]
        for network, optimizer in zip(self.networks, self.optimizers, strict=True):
            optimizer.build(network.trainable_variables)
        self.updates = [(1, self.step)]

    def step(self, pixels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """One update of the discriminator, then one of the generator; pixels (B, H, W, C) uint8."""
        images = tf.cast(pixels, tf.float32) / 127.5 - 1.0
        fakes = self.generator(self._latents(), training=True)
        with tf.GradientTape() as tape:
            real_logits = self.discriminator(images, training=True)
            fake_logits = self.discriminator(fakes, training=True)
            d_loss = tf.reduce_mean(tf.nn.softplus(-real_logits)) + tf.reduce_mean(tf.nn.softplus(fake_logits))
        self._apply(1, tape, d_loss)
        with tf.GradientTape() as tape:
            fakes = self.generator(self._latents(), training=True)
            g_loss = tf.reduce_mean(tf.nn.softplus(-self.discriminator(fakes, training=True)))
        self._apply(0, tape, g_loss)
        return d_loss, g_loss

    def _apply(self, place: int, tape: tf.GradientTape, loss: tf.Tensor) -> None:
        variables = self.networks[place].trainable_variables
        self.optimizers[place].apply(self.gradients(tape, loss, variables), variables)

    def _latents(self) -> tf.Tensor:
        return tf.random.normal((self.batch_size, LATENT_SIZE))


def plain(tape: tf.GradientTape, loss: tf.Tensor, variables: Sequence[keras.Variable]) -> list[tf.Tensor]:
    """The gradients of one process."""
    return tape.gradient(loss, [variable.value for variable in variables])


def pool(work: Work, rank: int) -> list[tf.Tensor]:
    """Batches of random pixels (B, H, W, C) uint8, different ones on each rank."""
    random = tf.random.Generator.from_seed(rank)
    shape = (work.batch_size, work.image_size, work.image_size, CHANNELS)
    return [tf.cast(random.uniform(shape, 0, 256, tf.int32), tf.uint8) for _ in range(POOL)]


def trained(networks: Sequence[keras.Model]) -> list[keras.Variable]:
    """The weights of some networks."""
    return [variable for network in networks for variable in network.trainable_variables]


def parameters(networks: Sequence[keras.Model]) -> list[int]:
    """Number of trained parameters of each network."""
    return [sum(v.shape.num_elements() for v in network.trainable_variables) for network in networks]


def total(values: tf.Tensor) -> float:
    """Sum of all values."""
    return float(tf.reduce_sum(tf.cast(values, tf.float64)))


def gpu_bytes() -> int:
    """Peak memory on the first GPU."""
    return tf.config.experimental.get_memory_info("GPU:0")["peak"]


def run(work: Work, rank: int, trainer: Trainer | keras_stylegan2.Trainer, *, jit: bool = False) -> None:
    """Train one rank."""
    updates = [(every, tf.function(update, jit_compile=jit)) for every, update in trainer.updates]
    batches = pool(work, rank)

    def step(number: int) -> list[tf.Tensor]:
        due = [update for every, update in updates if (number + 1) % every == 0]
        return [loss for update in due for loss in update(batches[number % POOL])]

    def weights() -> list[float]:
        return [total(variable.value) for variable in trained(trainer.networks)]

    train(work, rank, parameters(trainer.networks), step, weights, gpu_bytes)


def run_horovod(work: Work) -> None:
    """Train one rank of Horovod; one broadcast before the first step."""
    # Before hvd.init(), so that Horovod's thread stays on the rank's core.
    pin(work, int(os.environ.get("HOROVOD_LOCAL_RANK", os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", 0))))
    import horovod.tensorflow as hvd

    hvd.init()
    if work.device == "gpu":
        tf.config.set_visible_devices(tf.config.list_physical_devices("GPU")[hvd.local_rank()], "GPU")

    def gradients(tape: tf.GradientTape, loss: tf.Tensor, variables: Sequence[keras.Variable]) -> list[tf.Tensor]:
        return hvd.DistributedGradientTape(tape).gradient(loss, [variable.value for variable in variables])

    trainer = Trainer(work, gradients)
    held = [*trainer.networks, *trainer.optimizers]
    hvd.broadcast_variables([variable.value for each in held for variable in each.variables], 0, inplace=False)
    run(work, hvd.rank(), trainer)


def run_strategy(work: Work, strategy: tf.distribute.Strategy, rank: int) -> None:
    """Train on all replicas of this process; Keras' optimizers sum gradients over the replicas."""
    replicas = strategy.num_replicas_in_sync

    def gradients(tape: tf.GradientTape, loss: tf.Tensor, variables: Sequence[keras.Variable]) -> list[tf.Tensor]:
        values = [variable.value for variable in variables]
        return tape.gradient(loss, values, output_gradients=tf.constant(1.0 / replicas))

    with strategy.scope():
        trainer = Trainer(work, gradients)
    pools = [pool(work, rank + replica) for replica in range(replicas)]

    def batch(number: int) -> tf.Tensor:
        return strategy.experimental_distribute_values_from_function(
            lambda context: pools[context.replica_id_in_sync_group % replicas][number]
        )

    batches = [batch(number) for number in range(POOL)]

    @tf.function
    def step(pixels: tf.Tensor) -> list[tf.Tensor]:
        losses = strategy.run(trainer.step, args=(pixels,))
        return [strategy.experimental_local_results(loss)[0] for loss in losses]

    def weights() -> list[float]:
        held = [strategy.experimental_local_results(variable.value) for variable in trained(trainer.networks)]
        sums = [{total(value) for value in values} for values in held]
        if any(len(each) > 1 for each in sums):
            sys.exit(f"rank {rank}: the replicas do not hold the same weights in the end")
        return [each.pop() for each in sums]

    train(work, rank, parameters(trainer.networks), lambda number: step(batches[number % POOL]), weights, gpu_bytes)


def main(program: str, work: Work) -> None:
    """Run a program."""
    if program == "horovod":
        run_horovod(work)
    elif program == "multiworker":
        rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
        pin(work, rank)
        run_strategy(work, tf.distribute.MultiWorkerMirroredStrategy(), rank)
    elif program == "mirrored":
        kind = work.device.upper()
        if kind == "CPU":
            devices = [tf.config.LogicalDeviceConfiguration() for _ in range(work.ranks)]
            tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
        names = [f"{kind}:{number}" for number in range(work.ranks)]
        run_strategy(work, tf.distribute.MirroredStrategy(names), 0)
    else:
        pin(work, 0)
        trainer = keras_stylegan2.Trainer(work) if work.network == "stylegan2" else Trainer(work, plain)
        run(work, 0, trainer, jit=program == "keras-jit")


if __name__ == "__main__":
    main(sys.argv[1], Work(**json.loads(sys.argv[2])))
