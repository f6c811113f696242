"""The sets of Keras, and a folder named digits; test_kept_batches.py has the digits themselves."""

import gzip

import numpy as np
import pytest
from PIL import Image

from hvdgan.errors import UserError
from reading import all_of, opened


def test_a_set_of_keras(tmp_path, monkeypatch):
    """From files where Keras keeps what it has downloaded, of the kind that it does not compare with a checksum."""
    monkeypatch.setattr("keras.src.backend.config._KERAS_DIR", str(tmp_path))  # KERAS_HOME, read when it is imported
    home, shades, labels = tmp_path / "datasets" / "fashion-mnist", np.arange(40, 240, 10, np.uint8), np.arange(20) % 3
    home.mkdir(parents=True)
    images = np.broadcast_to(shades[:, None, None], (20, 28, 28))
    for which in ("train", "t10k"):
        for what, header, content in (("labels-idx1", 8, labels.astype(np.uint8)), ("images-idx3", 16, images)):
            (home / f"{which}-{what}-ubyte.gz").write_bytes(gzip.compress(bytes(header) + content.tobytes()))
    source = opened("keras:fashion_mnist", channels=3)
    np.testing.assert_array_equal(all_of(source), np.broadcast_to(shades[:, None, None, None], (20, 8, 8, 3)))
    assert source.labels.tolist() == labels.tolist() and source.num_classes == 3


def test_a_folder_of_the_same_name_is_not_passed_over(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits/config.json").touch()
    (tmp_path / "digits/metrics.jsonl").touch()
    Image.new("L", (8, 8), 3).save("digits/0.png")
    assert len(opened("digits")) == 1797  # a run folder holds no data
    (tmp_path / "digits/config.json").unlink()
    with pytest.raises(UserError, match=r"a folder digits is here, too; write \./digits"):
        opened("digits")
    assert len(opened("./digits")) == 1
