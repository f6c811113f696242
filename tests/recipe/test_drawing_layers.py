"""Every layer of Keras that draws, in whole runs: the same weights on one to three ranks, in micro-batches, resumed."""

import numpy as np
import pytest

import drawing
from launching import train
from saved import checkpoint, state, tensors

RUN = "--recipe drawing:Drawing --data digits --image-size 8 --global-batch-size 12 --checkpoint-every 5".split()
WAYS = {
    "one rank": (1, ""),
    "two ranks": (2, ""),
    "three ranks": (3, ""),
    "micro-batches": (1, "--accumulate 2"),
    "micro-batches of two ranks": (2, "--accumulate 3"),
}


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(drawing.PARTS))
def test_layers_train_alike_in_each_way_and_resume(tmp_path, part):
    command = [*RUN, "--part", str(part), "--sample-every", "0"]
    for name, (ranks, more) in WAYS.items():
        train(tmp_path, *command, *more.split(), "--run-dir", name, ranks=ranks)
    one, first = (tensors(tmp_path / "one rank", step) for step in (10, 5))
    names = [name for name in one if name.startswith("networks/") and name in first]
    assert max(np.abs(one[name] - first[name]).max() for name in names) > 0.005
    for name in WAYS:
        other = tensors(tmp_path / name, 10)
        for each in names:
            np.testing.assert_allclose(other[each], one[each], rtol=0, atol=1e-6, err_msg=f"{name}: {each}")
    train(tmp_path, *command, "--run-dir", "resumed", "--resume", str(checkpoint(tmp_path / "one rank", 5)))
    assert state(tmp_path / "resumed", 10) == state(tmp_path / "one rank", 10)
