"""What sample() may return besides pictures: a dict with further arrays. Modules: recipe.outputs"""

import pytest
import tensorflow as tf

from hvdgan.recipe import DataSpec
from hvdgan.recipe.batch import Batch
from hvdgan.recipe.nets import Nets
from hvdgan.recipe.outputs import sampled
from hvdgan.recipe.recipe_errors import Mistake
from hvdgan.recipe.sampling import SampleRandom
from tiny import Tiny


@pytest.mark.parametrize(
    ("others", "named"),
    [
        ({"mask": tf.zeros((3, 8, 8, 1))}, "mask as float32 (3, 8, 8, 1)"),
        ({"map": tf.zeros((4, 8, 8, 2))}, "(N, 8, 8, 3)"),
        ({"index": tf.zeros((4,))}, "'index'"),
        ({"mask": tf.zeros(())}, "mask as float32 ()"),
        ({"images": tf.zeros((4, 8, 8, 2))}, "(4, 8, 8, 2)"),
        ({"images": None}, "None"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(others, named):
    class Wrong(Tiny):
        def sample(self, nets, batch):
            return {"images": tf.zeros((4, 8, 8, 1)), **others}

    recipe = Wrong(Tiny.Options(), DataSpec((8, 8, 1), 10, array_shapes={"map": (8, 8, 3)}))
    batch = Batch(tf.zeros((4, 8, 8, 1)), None, SampleRandom(0, tf.range(4, dtype=tf.int64)), {})
    with pytest.raises(Mistake, match=r"sample\(\)") as refused:
        sampled(recipe, Nets({}, training=False), batch)
    assert named in str(refused.value)
