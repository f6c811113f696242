"""Makes a small feature network of pictures with classes, for the content loss of the recipe srgan.

    python examples/data/picture_features.py --data emoji/train.npz --out emoji.keras

It is the convolutions of a classifier that was trained on these pictures: (B, H, W, C) in [-1, 1], of any size, to
features (B, H / 4, W / 4, 64), divided by their deviation.
"""

import argparse
from pathlib import Path

import keras
import numpy as np
from keras import layers

_WIDTHS = (32, 32, 64, 64)


def main() -> None:
    """Train, save, print the accuracy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="file (.npz) of images (N, H, W, C) uint8 and labels")
    parser.add_argument("--out", type=Path, required=True, help="file (.keras) to write")
    parser.add_argument("--epochs", type=int, default=8, help="number of times that each picture is seen")
    given = parser.parse_args()
    with np.load(given.data) as arrays:
        images, labels = arrays["images"], arrays["labels"]
    network, accuracy = feature_network(images.astype(np.float32) / 127.5 - 1.0, labels, given.epochs)
    network.save(given.out)
    print(f"{given.out}: features of {network.output.shape[-1]} channels; accuracy {accuracy:.3f} on held-out pictures")


def feature_network(images: np.ndarray, labels: np.ndarray, epochs: int) -> tuple[keras.Model, float]:
    """Train a classifier on 9/10 of the pictures; returns its convolutions, and its accuracy on the rest."""
    keras.utils.set_random_seed(0)
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = images[order], labels[order]
    held_out = len(images) // 10
    x = inputs = keras.Input((None, None, images.shape[-1]))
    for number, width in enumerate(_WIDTHS):
        x = layers.Conv2D(width, 3, strides=1 + number % 2, padding="same", activation="relu")(x)
    features = layers.Conv2D(_WIDTHS[-1], 3, padding="same", name="features")(x)
    x = layers.GlobalAveragePooling2D()(layers.ReLU()(features))
    classes = layers.Dense(int(labels.max()) + 1, activation="softmax")(x)
    classifier = keras.Model(inputs, classes)
    classifier.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    classifier.fit(images[held_out:], labels[held_out:], batch_size=32, epochs=epochs, verbose=0)
    accuracy = classifier.evaluate(images[:held_out], labels[:held_out], verbose=0)[1]
    deviation = float(np.std(keras.Model(inputs, features).predict(images[:held_out], verbose=0)))
    return keras.Model(inputs, layers.Rescaling(1.0 / deviation)(features)), float(accuracy)


if __name__ == "__main__":
    main()
