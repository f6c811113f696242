"""What is copied to the device with each batch: numbers of the data's own type, mapped to the same bits in the step.

Modules: training.gradients.
"""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

from hvdgan.cli.config import Config
from hvdgan.cli.data_config import ArrayConfig
from hvdgan.cli.shared_errors import ALONE
from hvdgan.data import open_source
from hvdgan.data.statistics import with_statistics
from hvdgan.recipe.batch import unpack
from hvdgan.train import main
from hvdgan.training.run import spec_of
from packed_arrays import pack
from saved import state

RNG = np.random.default_rng(0)
NOISE = RNG.uniform(0, 100, (24, 4, 6, 8, 1))
ENERGY = RNG.uniform(0, 100, 24)


def saved(folder, dtype, **arrays):
    """Volumes of a type; the range of the map is that of the numbers and of no type."""
    np.savez(folder / "a.npz", x=NOISE.astype(dtype))
    return {"data": f"{folder}/a.npz:x", "arrays": ArrayConfig(axes="DHWC", **{"values": "range:-7,111", **arrays})}


def shards_of_arrays(folder):
    np.save(folder / "a.npy", NOISE.astype(np.uint16))
    made = pack(folder / "a.npy", folder / "shards", "--axes", "DHWC")
    return {"data": str(made), "arrays": ArrayConfig(values="range:-7,111")}


KINDS = {
    "digits": (lambda folder: {"data": "digits", "image_size": 8}, np.uint8),
    "shards of arrays": (shards_of_arrays, np.uint16),
    "float16": (lambda folder: saved(folder, np.float16), np.float16),
    "uint8": (lambda folder: saved(folder, np.uint8), np.uint8),
    "uint16, big-endian": (lambda folder: saved(folder, ">u2"), np.uint16),
    "uint16, standard": (lambda folder: saved(folder, np.uint16, values="standard"), np.uint16),
    # NumPy and TensorFlow round the logarithm otherwise, and TensorFlow joins constants of two steps.
    "uint16, log1p": (lambda folder: saved(folder, np.uint16, values="log1p"), np.float32),
    "uint16, two steps": (lambda folder: saved(folder, np.uint16, values="range:0,50+standard"), np.float32),
    "crops": (lambda folder: saved(folder, np.uint16, crop=(2, 4, 4)), np.uint16),
}


@pytest.fixture(params=KINDS, ids=list(KINDS))
def opened(request, tmp_path):
    """The samples as they are stored, those of a run, and the type that is expected on the bus."""
    settings, dtype = KINDS[request.param][0](tmp_path), KINDS[request.param][1]
    stored = open_source(Config(**settings))
    return stored, stored.mapped(with_statistics(stored, ALONE)), dtype


def test_the_step_maps_numbers_of_the_type_of_the_data_to_the_bits_that_numpy_computes(opened):
    stored, source, dtype = opened
    assert source.fetch_batch(np.arange(6)).dtype == dtype
    indices = np.arange(6)
    _, images = stored.layout.split(stored.fetch_batch(indices))
    whole = dataclasses.replace(spec_of(source), layout=dataclasses.replace(source.layout, crop=None))
    seen = tf.function(lambda some: unpack(some, whole)[:2], autograph=False)(tf.constant(source.fetch_batch(indices)))
    if stored.is_pictures:
        np.testing.assert_array_equal(seen[0], tf.function(lambda some: some / 127.5 - 1)(images.astype(np.float32)))
        return
    np.testing.assert_array_equal(seen[0], source.values.images.forward(images))
    assert all(part is None or part.dtype == tf.float32 for part in seen)


FLAGS = ["--recipe", "tiny_arrays:Volumes", "--conditions", "energy", "--condition-values", "range:0,100"]
FLAGS += ["--global-batch-size", "8", "--log-every", "1", "--values", "standard", "--axes", "DHWC"]


def test_a_run_on_8_or_16_bits_is_that_on_the_same_numbers_in_float32(tmp_path, monkeypatch):
    """With samples and evaluations; it is also interrupted and resumed, with a limit of the GPU's memory."""
    monkeypatch.chdir(tmp_path)
    more = "--crop 4,4,4 --flip-axes width --diff-augment translation --holdout 0.3 --eval-every 2".split()
    more += "--eval-samples 8 --cache memory".split()
    metrics = {}
    for dtype in ("float32", "int16"):
        np.savez(tmp_path / f"{dtype}.npz", x=NOISE.astype(np.int16).astype(dtype), energy=ENERGY)
        flags = [*FLAGS, "--data", f"{dtype}.npz:x", "--run-dir", dtype, *more]
        assert main([*flags, "--max-steps", "2"]) == 0
        assert main([*flags, "--gpu-memory-limit", "512"]) == 0
        lines = map(json.loads, (tmp_path / dtype / "metrics.jsonl").read_text().splitlines())
        metrics[dtype] = [{name: value for name, value in line.items() if "sec" not in name} for line in lines]
    assert state(tmp_path / "int16", 4) == state(tmp_path / "float32", 4)
    assert metrics["int16"] == metrics["float32"]
    for grid in ("step-00000004.png", "real.png"):
        grids = [(tmp_path / dtype / "samples" / grid).read_bytes() for dtype in metrics]
        assert grids[0] == grids[1]
