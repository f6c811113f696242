"""keras.RematScope as docs/performance.md says it: the same bits where it works, one line where it does not.

Modules: training.gradients.
"""

import keras
import numpy as np
import pytest

import small
from building import data_of, tiny_run
from hvdgan.cli.errors import UserError


def scoped(name, mode):
    recipe, options = small.small(name)

    class Remat(recipe):
        def networks(self):
            with keras.RematScope(mode=mode):
                return super().networks()

    return tiny_run(Remat, options, image_size=32), tiny_run(recipe, options, image_size=32)


def test_activations_that_are_computed_again_change_no_bit():
    runs = scoped("dcgan", "activations")
    for run in runs:
        for step in range(2):
            run.steps[0](step, step, data_of(run, step))
    counts = [sum(len(each.graph.get_operations()) for each in run.steps[0].traced.values()) for run in runs]
    assert counts[0] > counts[1]
    for mine, its in zip(*(run.state.tensors().values() for run in runs), strict=True):
        np.testing.assert_array_equal(mine.numpy(), its.numpy())


def test_what_keras_cannot_compute_again_is_one_line():
    with pytest.raises(UserError) as caught:
        scoped("dcgan", "full")
    assert "update" in str(caught.value) and "\n" not in str(caught.value)
