"""The small feature network of digits that examples/data/digits_features.py makes."""

import sys

import numpy as np
import pytest

from hvdgan.cli.config import Config
from hvdgan.data import open_source
from hvdgan.evaluation.features import open_features
from hvdgan.recipe import DataSpec
from launching import ROOT

sys.path.insert(0, str(ROOT / "examples" / "data"))
import digits_features


@pytest.mark.long
def test_its_features_know_the_digits(tmp_path, monkeypatch, capsys):
    """Digits of a class lie closer to the mean of their class than to that of another, and the classes are right."""
    monkeypatch.setattr(sys, "argv", ["digits_features.py", "--out", str(tmp_path / "digits.keras")])
    digits_features.main()
    assert float(capsys.readouterr().out.split("accuracy ")[1].split()[0]) >= 0.97
    source = open_source(Config())
    opened = open_features(
        str(tmp_path / "digits.keras"), DataSpec((32, 32, 1), len(source)), inception=None, resize="clean"
    )
    assert (opened.dimension, opened.classes, opened.resize) == (64, 10, "none")
    features, probabilities = opened(source.fetch_batch(np.arange(600)))
    labels = np.asarray(source.labels)[:600]
    assert (probabilities.argmax(axis=1) == labels).mean() >= 0.97
    means = np.stack([features[labels == digit].mean(axis=0) for digit in range(10)])
    distances = np.square(features[:, None] - means).sum(axis=-1)
    assert (distances.argmin(axis=1) == labels).mean() >= 0.95
