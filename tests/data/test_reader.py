"""How far a source is read ahead."""

import numpy as np
import pytest

from hvdgan.data import reader
from hvdgan.data.base import parallel_map
from hvdgan.data.reader import ImageReader

MIB = 2**20


class Held:
    """Images that are there, in a number of them a call."""

    batched, decode, dtype = True, None, np.dtype(np.uint8)

    def __init__(self, side):
        self.record_shape = (side, side, 3)

    def __len__(self):
        return 1000

    def blank(self, count):
        return np.zeros((count, *self.record_shape), self.dtype)

    def fetch_batch(self, indices):
        return np.broadcast_to(
            (indices % 256).astype(np.uint8)[:, None, None, None], (len(indices), *self.record_shape)
        )


class Encoded(Held):
    """Records that a graph decodes, many at a time."""

    batched = False

    @staticmethod
    def decode(records):
        raise NotImplementedError


@pytest.mark.parametrize("kind", [Held, Encoded])
@pytest.mark.parametrize(("side", "batch", "together"), [(1024, 64, 2), (2048, 64, 1), (32, 64, 64), (1024, 61, 1)])
def test_portions_of_large_images_are_small(monkeypatch, kind, side, batch, together):
    portions = []

    def noted(function, items, count):
        portions.extend(len(item) for item in items)
        return iter([(np.zeros((len(item), 1)), np.ones(len(item), bool)) for item in items])

    monkeypatch.setattr(reader, "parallel_map", noted)
    source = kind(side)
    for images, _ in ImageReader(source, batch, 16)(np.arange(2 * batch).reshape(2, batch)):
        assert len(images) == batch
    assert set(portions) == {together}
    ahead = parallel_map.AHEAD * 16 * together * np.prod(source.record_shape)
    assert together == 1 or ahead <= 16 * 2 * 8 * MIB


def test_batches_of_large_images_are_those_of_the_source():
    source, indices = Held(1024), np.arange(12).reshape(2, 6)
    for wanted, (images, readable) in zip(indices, ImageReader(source, 6, 2)(indices), strict=True):
        np.testing.assert_array_equal(images, source.fetch_batch(wanted))
        assert readable.all()
