"""tf.distribute.MirroredStrategy: one process, two logical CPU devices, two cores."""

import strategies
import tensorflow as tf
import work as common


def main() -> None:
    """Train on both devices."""
    work = common.parse()
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategies.train(work, tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]), 0)


if __name__ == "__main__":
    main()
