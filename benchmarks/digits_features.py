"""Makes a small feature network of digits, for evaluations without the Inception network: digits.keras.

    python benchmarks/digits_features.py --out digits.keras
    python -m hvdgan.train --eval-features digits.keras ...

It is the classifier of benchmarks/quality.py with a layer of 64 features before its classes, trained on 4/5 of the
digits in seconds. Its outputs are `features` (B, 64) and `probabilities` (B, 10). Distances with it can be compared
with each other, never with a published FID.
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
    out = parser.parse_args().out
    network, accuracy = feature_network()
    network.save(out)
    print(f"{out}: {UNITS} features and 10 classes of 32 x 32 digits, accuracy {accuracy:.3f} on held-out digits")


def feature_network() -> tuple[keras.Model, float]:
    """Train the classifier; returns it with both outputs, and its accuracy on digits that it has not seen."""
    network, accuracy = classifier(UNITS)
    outputs = {"features": network.get_layer("features").output, "probabilities": network.outputs[0]}
    return keras.Model(network.inputs, outputs), accuracy


if __name__ == "__main__":
    main()
