"""Trains the classifier that counts the modes of Stacked MNIST: mnist_cnn, an example of Keras 2.

    python benchmarks/stacked_classifier.py --digits mnist --out classifier.keras

As in PacGAN's programs it has convolutions of 32 and 64 channels, a layer of 128 features and 20 epochs of Adadelta on
the 60,000 training digits, in [0, 1]. Its outputs are the features (B, 128) and the probabilities (B, 10). A file
next to it, of the same name with the suffix .json, has its accuracy on the test digits.
"""

import argparse
import json
from pathlib import Path

import keras
import numpy as np
from keras import layers
from stacked import SIDE, digits_of


def main() -> None:
    """Train, save, write the accuracy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--digits", type=Path, required=True, help="folder with train.npz and test.npz")
    parser.add_argument("--epochs", type=int, default=20, help="number of times that each digit is seen [default: 20]")
    parser.add_argument("--out", type=Path, default=Path("classifier.keras"), help="file to write")
    given = parser.parse_args()
    keras.utils.set_random_seed(0)
    network = classifier()
    network.compile(keras.optimizers.Adadelta(1.0), "sparse_categorical_crossentropy", metrics=["accuracy"])
    network.fit(*part(given.digits, "train"), batch_size=128, epochs=given.epochs, verbose=2)
    accuracy = network.evaluate(*part(given.digits, "test"), batch_size=128, verbose=0)[1]
    keras.Model(network.inputs, [network.get_layer("features").output, network.outputs[0]]).save(given.out)
    facts = {"epochs": given.epochs, "accuracy": round(accuracy, 4)}
    given.out.with_suffix(".json").write_text(json.dumps(facts) + "\n", encoding="utf-8")
    print(f"{given.out}: accuracy {accuracy:.4f} on the test digits")


def classifier() -> keras.Sequential:
    """The network of the example."""
    return keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Dropout(0.25),
            layers.Flatten(),
            layers.Dense(128, activation="relu", name="features"),
            layers.Dropout(0.5),
            layers.Dense(10, activation="softmax"),
        ]
    )


def part(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Digits (N, 28, 28, 1) float32 in [0, 1], and labels (N,)."""
    images, labels = digits_of(folder, name)
    return images[..., None].astype(np.float32) / 255, labels


if __name__ == "__main__":
    main()
