"""Losses that see several samples as one (PacGAN): each rank and micro-batch has whole packs, or nothing begins.

Modules: training.run.
"""

import pytest

from building import tiny_run
from hvdgan.recipe import UserError
from tiny import Tiny


class Packed(Tiny):
    pack = 4


@pytest.mark.parametrize(
    ("settings", "unit"), [({"global_batch_size": 6}, 4), ({"global_batch_size": 8, "accumulate": 4}, 16)]
)
def test_a_batch_of_other_than_whole_packs_is_refused(settings, unit):
    with pytest.raises(UserError, match=f"into packs of 4; take a multiple of {unit}$"):
        tiny_run(Packed, **settings)


def test_whole_packs_train():
    tiny_run(Packed, global_batch_size=16, accumulate=2)
