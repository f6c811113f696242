"""Makes a small feature network of digits, for evaluations without the Inception network.

    python benchmarks/digits_features.py --out digits.keras
    python benchmarks/digits_features.py --data mnist/train.npz --epochs 3 --out mnist.keras
    python -m hvdgan.train --eval-features digits.keras ...

It is the classifier of benchmarks/quality.py with a layer of 64 features before its classes, trained on 4/5 of the
digits in seconds, or on those of MNIST (benchmarks/datasets.py) in a minute. Its outputs are `features` (B, 64) and
`probabilities` (B, 10). Distances with it can be compared with each other, never with a published FID.
"""

import argparse
from pathlib import Path

import keras
from quality import classifier

UNITS = 64


def main() -> None:
    """Train, save, print the accuracy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("digits.keras"), help="file to write")
    parser.add_argument("--data", default="digits", help="digits of 32 x 32 pixels with labels, as for hvdgan.train")
    parser.add_argument("--epochs", type=int, default=15, help="number of times that each digit is seen")
    given = parser.parse_args()
    network, accuracy = feature_network(given.data, given.epochs)
    network.save(given.out)
    print(f"{given.out}: {UNITS} features and 10 classes of 32 x 32 digits, accuracy {accuracy:.3f} on held-out digits")


def feature_network(data: str, epochs: int) -> tuple[keras.Model, float]:
    """Train the classifier; returns it with both outputs, and its accuracy on digits that it has not seen."""
    network, accuracy = classifier(UNITS, data, epochs)
    outputs = {"features": network.get_layer("features").output, "probabilities": network.outputs[0]}
    return keras.Model(network.inputs, outputs), accuracy


if __name__ == "__main__":
    main()
