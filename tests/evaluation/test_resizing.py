"""Resizing pictures for feature networks, against Pillow and against arithmetic."""

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from hvdgan.evaluation.resizing import resize


def by_pillow(pictures, size):
    """The bicubic filter of Pillow on each channel in mode F, without clipping."""
    height, width = size
    return np.stack(
        [
            np.stack(
                [
                    np.asarray(Image.fromarray(picture[..., channel]).resize((width, height), Image.BICUBIC))
                    for channel in range(picture.shape[-1])
                ],
                axis=-1,
            )
            for picture in pictures
        ]
    )


@pytest.mark.parametrize("shape", [(28, 28, 1), (32, 32, 3), (64, 48, 3), (256, 256, 3), (500, 333, 3), (299, 120, 3)])
def test_clean_is_pillow_in_float(shape):
    """White noise is the hardest picture; 0.01 of 255 is 25 times less than what rounding to 8 bits does."""
    pictures = np.random.default_rng(0).integers(0, 256, (2, *shape)).astype(np.float32)
    clean = resize(tf.constant(pictures), (299, 299), "clean").numpy()
    expected = by_pillow(pictures, (299, 299))
    assert np.abs(clean - expected.clip(0, 255)).max() < 0.01
    assert expected.min() < -5 and expected.max() > 260  # what clean-fid clips


def test_clean_averages_and_legacy_skips():
    """Stripes of one pixel become grey; the bilinear filter of TensorFlow 1 sees only every fourth column."""
    stripes = np.zeros((1, 64, 64, 1), np.float32)
    stripes[:, :, ::2] = 255
    assert np.ptp(resize(stripes, (16, 16), "clean")) < 20
    assert (resize(stripes, (16, 16), "legacy").numpy() == 255).all()


def test_legacy_by_hand():
    """Two pixels to four: positions 0, 0.5, 1, 1.5, of which the last lies beyond the second pixel."""
    row = np.array([0, 100], np.float32).reshape(1, 1, 2, 1)
    assert resize(row, (1, 4), "legacy").numpy().ravel().tolist() == [0, 50, 100, 100]


@pytest.mark.parametrize("method", ["clean", "legacy"])
def test_the_same_size_changes_nothing(method):
    pictures = tf.constant(np.random.default_rng(0).uniform(0, 255, (2, 9, 7, 3)), tf.float32)
    assert resize(pictures, (9, 7), method) is pictures
