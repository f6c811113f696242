"""Public Keras programs as recipes: each trains on one and on two ranks with equal results, and resumes."""

import importlib
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from launching import ROOT, train
from saved import checkpoint, state, tensors
from wave_files import write_waves

HERE = Path(__file__).parent
NAMES = sorted(path.stem for path in HERE.glob("*.py") if path != Path(__file__))
SETTINGS = "--global-batch-size 8 --max-steps 3 --checkpoint-every 1 --log-every 1 --sample-every 3".split()


def program(name):
    """What a file of the gallery says of itself."""
    return importlib.import_module(name).PROGRAM


def test_the_page_has_a_row_for_each_program():
    """What it needs, and its lines, which may change a little."""
    page = (ROOT / "docs" / "porting.md").read_text()
    rows = re.findall(r"^\| \[(.+)\]\(../tests/gallery/(\w+).py\) \| (.+) \| (\d+) \|$", page, re.MULTILINE)
    found = {name: (title, *needs.split("; depends on the number of ranks")) for title, name, needs, _ in rows}
    for name in NAMES:
        each = program(name)
        assert found[name] == (each["name"], each["needs"], *[""] * (not each.get("alike", True)))
    lines = {name: len((HERE / f"{name}.py").read_text().splitlines()) for name in NAMES}
    assert {name: int(count) for _, name, _, count in rows} == pytest.approx(lines, rel=0.15)


def words(name, folder):
    """The command line of a program, whose arrays are written to a folder."""
    module = importlib.import_module(name)
    if hasattr(module, "arrays"):
        np.savez(folder / "data.npz", **module.arrays())
    own = shlex.split(module.PROGRAM["run"].format(data=folder / "data.npz"))
    return ["--recipe", f"smooth:{name}", *own, *SETTINGS]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMES)
def test_program(name, tmp_path):
    """Programs that compare the samples of a batch differ on two ranks; hvdgan compares the ranks' weights itself."""
    assert_alike(tmp_path, words(name, tmp_path), alike=program(name).get("alike", True))


OF_EXAMPLES = {
    "my_tokenizer": "--image-size 16 --width 8 --codes 16 --stages errors=1,adversarial=2",
    "my_tokenizer, learnt": "--image-size 16 --width 8 --codes 16 --stages errors=1,adversarial=2 --learn-codes",
    "my_vocoder": "--data {data} --segment 2048 --width 8 --judge-width 1 --stages mel=1,adversarial=2",
}


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", OF_EXAMPLES)
def test_example(name, tmp_path):
    data = write_waves(tmp_path / "waves") if "{data}" in OF_EXAMPLES[name] else ""
    flags = f"--recipe smooth:{name.partition(',')[0]} {OF_EXAMPLES[name].format(data=data)}"
    assert_alike(tmp_path, [*flags.split(), *SETTINGS])


def assert_alike(folder, command, *, alike=True):
    """Compare three steps on one rank with those on two, and with a run that is resumed."""
    one, two = folder / "one", folder / "two"
    train(HERE, *command, "--run-dir", str(one))
    train(HERE, *command, "--run-dir", str(two), ranks=2)
    if alike:
        assert_near(tensors(one, 3), tensors(two, 3))
    train(HERE, *command, "--run-dir", str(folder / "resumed"), "--resume", str(checkpoint(one, 2)))
    assert state(folder / "resumed", 3) == state(one, 3)


def assert_near(one, two):
    """Compare each network's variables with its largest, and a slot of its optimizer with the largest such slot.

    Slots hold gradients, whose sums round otherwise on two ranks, and their squares. Two ranks also save statistics of
    each.
    """
    assert one.keys() == {name for name in two if not name.startswith("ranks/")}
    slots = [name for name in one if name.startswith("optimizers/")]
    kinds = {name: (*name.split("/")[:2], name in slots and name.split("/")[-1]) for name in one}
    largest = dict.fromkeys(kinds.values(), 0.0)
    for name, value in one.items():
        largest[kinds[name]] = max(largest[kinds[name]], np.max(np.abs(value), initial=0.0))
    for name, value in one.items():
        tolerance = (5e-5 if name in slots else 1e-5) * largest[kinds[name]]
        np.testing.assert_allclose(two[name], value, rtol=0, atol=tolerance, err_msg=name)


OF_THE_READER = """
import keras
import tensorflow as tf
from keras import layers
from keras.optimizers import Adam

from hvdgan.recipe import Recipe, Stage, Update

bce_of = keras.losses.BinaryCrossentropy(from_logits=True)

def bce(target, logits):
    return bce_of(tf.fill(tf.shape(logits), target), logits)

def make_generator():
    return keras.Sequential([keras.Input((100,)), layers.Dense(64, "tanh"), layers.Reshape((8, 8, 1))])

def make_discriminator():
    return keras.Sequential([keras.Input((8, 8, 1)), layers.Flatten(), layers.Dropout(0.3), layers.Dense(1)])

"""


def test_the_recipe_of_the_page_trains(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "porting.md").read_text(), re.DOTALL)
    (tmp_path / "gan.py").write_text(OF_THE_READER + "".join(blocks[1:6:2]))
    flags = "--recipe gan:GAN --data digits --image-size 8 --global-batch-size 256 --max-steps 2"
    train(tmp_path, *flags.split(), "--run-dir", str(tmp_path / "run"))
    assert {name.split("/")[1] for name in tensors(tmp_path / "run", 2) if name.startswith("optimizers/")} == {"g", "d"}
