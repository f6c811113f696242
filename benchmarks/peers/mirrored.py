"""tf.distribute.MirroredStrategy: one process, two logical CPU devices and two cores, or some GPUs."""

import strategies
import tensorflow as tf
import work as common


def main() -> None:
    """Train on all devices."""
    work = common.parse()
    if work.device == "gpu":
        gpus = [f"GPU:{number}" for number in range(work.replicas)]
        strategies.train(work, tf.distribute.MirroredStrategy(gpus), 0)
        return
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategies.train(work, tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]), 0)


if __name__ == "__main__":
    main()
