"""The recipe completion."""

from types import SimpleNamespace

import numpy as np
import tensorflow as tf

from hvdgan.recipe import Batch, DataSpec, Random
from hvdgan.recipes.completion import Completion, CompletionOptions

SMALL = CompletionOptions(nf=2, completion_steps=3, discriminator_steps=3, joint_steps=3)


def draw(options=SMALL, image_size=32, count=500):
    recipe = Completion(options, DataSpec((image_size, image_size, 1), 1))
    return recipe.draw(Random(0, tf.constant(0, tf.int64), 0, count))


def test_a_hole_is_one_rectangle_of_the_asked_size_inside_its_patch():
    drawn = draw()
    masks, corners = drawn["mask"].numpy()[..., 0], drawn["corner"].numpy()
    assert set(np.unique(masks)) == {0, 1}
    heights, widths = set(), set()
    for mask, (top, left) in zip(masks, corners, strict=True):
        rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
        assert mask.sum() == len(rows) * len(columns)
        assert top <= rows[0] and rows[-1] < top + 16 <= 32
        assert left <= columns[0] and columns[-1] < left + 16 <= 32
        heights.add(len(rows))
        widths.add(len(columns))
    assert heights == widths == set(range(12, 17))  # 0.375 and 0.5 of 32 pixels
    # Equation 3: the patch of a real image is drawn independently of that of the completed one.
    real = drawn["real_corner"].numpy()
    assert set(np.unique(real)) == set(range(17))
    assert all(abs(np.corrcoef(real[:, axis], corners[:, axis])[0, 1]) < 0.15 for axis in (0, 1))


def test_filling_keeps_what_is_outside_and_the_discriminator_sees_the_patch():
    recipe = Completion(SMALL, DataSpec((32, 32, 1), 1))
    drawn = draw(count=4)
    images = np.random.default_rng(0).normal(size=(4, 32, 32, 1)).astype(np.float32)
    batch = Batch(tf.constant(images), None, Random(0, tf.constant(0, tf.int64), 0, 4), drawn)
    seen = []

    def discriminator(inputs):
        seen.append([each.numpy() for each in inputs])
        return tf.zeros(4)

    recipe.judge(SimpleNamespace(completion=lambda _: tf.fill(images.shape, 9.0), discriminator=discriminator), batch)
    (real, real_patches), (filled, patches) = seen
    np.testing.assert_array_equal(real, images)
    np.testing.assert_array_equal(filled, np.where(drawn["mask"].numpy() == 1, np.float32(9), images))
    for whole, cut, corner in ((real, real_patches, "real_corner"), (filled, patches, "corner")):
        for image, patch, (top, left) in zip(whole, cut, drawn[corner].numpy(), strict=True):
            np.testing.assert_array_equal(patch, image[top : top + 16, left : left + 16])
