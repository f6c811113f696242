"""A recipe that writes down the samples that it sees, and the program by which several ranks resume runs of it.

`horovodrun -np 3 python recording.py FOLDER` trains each run of FOLDER/runs.json from its checkpoint to its end.
"""

import dataclasses
import json
import os
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from hvdgan.distributed import joining
from hvdgan.distributed.liveness.heartbeat import Heartbeat
from hvdgan.distributed.ranks import Ranks
from hvdgan.recipe import Recipe, Stage, Update
from hvdgan.training import session
from hvdgan.training.building.command import parse
from hvdgan.training.building.run import folder_of
from hvdgan.training.monitoring.page import Page
from hvdgan.training.monitoring.stopping import Stopping
from hvdgan.training.resuming.commits import Commits

STEPS = 3
FLAGS = ["--recipe", "recording:Recording", "--global-batch-size", "6", "--values", "none", "--holdout", "0"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The folder is named anew for each launch."""

    seen: str = ""
    """folder for the samples that each step sees"""


class Recording(Recipe):
    """One number of a network, whose gradient passes all samples."""

    Options = Options
    may_change = ("seen",)

    def networks(self):
        return {"net": keras.Sequential([keras.Input(self.data.shape), layers.Flatten(), layers.Dense(1)], name="net")}

    def optimizers(self):
        return {"net": keras.optimizers.SGD(0.0)}

    def stages(self):
        return [Stage("only", STEPS, [Update("move", owns=["net"], loss=self.move)])]

    def move(self, nets, batch):
        done = tf.numpy_function(self.record, [batch.random.step, batch.images], tf.float32, stateful=True)
        return tf.reduce_mean(nets.net(batch.images)) * tf.ensure_shape(done, ()), {}

    def record(self, step, images):
        """Write the samples of a step on this rank; returns 1."""
        np.save(Path(self.options.seen) / f"{step}-{os.environ.get('HOROVOD_RANK', '0')}.npy", images)
        return np.float32(1)

    def sample(self, nets, batch):
        return tf.zeros_like(batch.images)


def seen_by(folder: Path, step: int, ranks: int) -> np.ndarray:
    """The samples that all ranks have seen in a step, in their order."""
    return np.concatenate([np.load(folder / f"{step}-{rank}.npy") for rank in range(ranks)])


def resume(words: list[str], ranks: Ranks) -> None:
    """Train a run to its end, from its checkpoint."""
    command = parse(words)
    with Stopping(ranks, folder_of(command.config) / "stop", None) as stopping:
        run, point = session.build_and_restore(command, ranks, Commits())
        assert point.step == 1, point.step
        assert session.train(run, point, Heartbeat(), stopping, Commits(), Page("never"))


def main(folder: Path) -> None:
    joined = joining.start()
    for words in json.loads((folder / "runs.json").read_text()):
        resume(words, joined)
    joined.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
