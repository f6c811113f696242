"""The digits and the synthetic images: their pixels, labels and sizes."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from hvdgan.cli.errors import UserError
from reading import all_images, opened


def test_digits_are_the_scans_with_their_labels():
    source = opened("digits")
    scans = load_digits()
    assert (len(source), source.layout.shape[-1], source.bad_files) == (1797, 1, ())
    np.testing.assert_array_equal(all_images(source)[..., 0], np.rint(scans.images * 255 / 16))
    np.testing.assert_array_equal(source.labels, scans.target)
    assert source.labels.dtype == np.int32


def test_digits_do_not_shrink():
    with pytest.raises(UserError, match=r"--image-size 7: the digits have 8 x 8 pixels; expected 8 or more"):
        opened("digits", image_size=7)


@pytest.mark.parametrize("image_size", [9, 32, 65])
def test_digits_grow_and_take_colour(image_size):
    source = opened("digits", image_size=image_size, channels=3)
    image = source.fetch(5)
    assert (image.shape, image.dtype) == ((image_size, image_size, 3), np.uint8)
    assert (image == image[..., :1]).all()
    assert abs(image.mean() - opened("digits").fetch(5).mean()) < 8


@pytest.mark.parametrize(("image_size", "channels"), [(32, None), (17, 1), (1, 3)])
def test_synthetic_images(image_size, channels):
    source = opened("synthetic", image_size=image_size, channels=channels)
    images = all_images(source)
    assert images.shape == (1024, image_size, image_size, channels or 3) and images.dtype == np.uint8
    np.testing.assert_array_equal(images, all_images(opened("synthetic", image_size=image_size, channels=channels)))
    np.testing.assert_array_equal(source.fetch(1000), images[1000])


def test_synthetic_images_differ_and_are_smooth():
    images = all_images(opened("synthetic", image_size=32))
    assert len(np.unique(images.reshape(1024, -1), axis=0)) == 1024
    steps = np.diff(images.astype(int), axis=1, append=images[:, :1])  # across the edge too
    assert abs(steps).max() < 100 and images.std() > 40
