"""A step whose networks add three parallel branches, which are also read alone; as a program it counts its results."""

import hashlib
import math
import sys

import keras
from keras import layers

from building import data_of, stage_step, tiny_run, values_of
from tiny import Tiny


class Branching(Tiny):
    """A generator with branches as those of HiFi-GAN."""

    def networks(self):
        pixels = (self.data.image_size, self.data.image_size, 16)
        inputs = keras.Input((8,))
        maps = layers.Reshape(pixels)(layers.Dense(math.prod(pixels))(inputs))
        alone = []
        for _ in range(4):
            branches = [self.branch(maps, size) for size in (3, 5, 7)]
            alone += [layers.Conv2D(2, 3, padding="same")(each) for each in branches]
            maps = layers.Add()(branches)
        maps = layers.Concatenate()([maps, *alone])
        outputs = layers.Conv2D(self.data.channels, 1, activation="tanh", dtype="float32")(maps)
        return {**super().networks(), "generator": keras.Model(inputs, outputs, name="generator")}

    def branch(self, maps, size):
        for _ in range(2):
            maps = layers.Add()([maps, layers.Conv2D(16, size, padding="same")(layers.LeakyReLU(0.1)(maps))])
        return maps


def main(steps: int) -> None:
    """Print the number of results of one step that is taken again and again."""
    run, found = tiny_run(Branching, image_size=32, global_batch_size=2), set()
    data, start = data_of(run), values_of(run)
    for _ in range(steps):
        for name, variable in run.state.tensors().items():
            variable.assign(start[name])
        stage_step(run)(0, 0, data)
        found.add(hashlib.sha256(b"".join(each.tobytes() for each in values_of(run).values())).hexdigest())
    print(len(found))


if __name__ == "__main__":
    main(int(sys.argv[1]))
