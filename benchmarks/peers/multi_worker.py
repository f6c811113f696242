"""tf.distribute.MultiWorkerMirroredStrategy with its defaults; TF_CONFIG names the workers."""

import json
import os

import strategies
import tensorflow as tf
import work as common


def main() -> None:
    """Train as one of the workers."""
    work = common.parse()
    rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    common.pin(rank)
    strategies.train(work, tf.distribute.MultiWorkerMirroredStrategy(), rank)


if __name__ == "__main__":
    main()
