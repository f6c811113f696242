"""Every source gives the same sequence of samples to any number of ranks, over epochs and after resuming.

Modules: data.samples, data.builtin.
"""

import gzip
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from hvdgan.cli.config import Config, TFRecordConfig
from hvdgan.data import cached, hold_out, open_source
from hvdgan.data.order import sample_indices
from launching import environment
from reading import batches_of

NUM = 20
BATCH = 12  # divisible by 1, 2, 3 and 4 ranks; does not divide an epoch
STEPS = 7  # four epochs and a part
SIZE = 8
SEED = 5
LABELS = (np.arange(NUM) * 7) % 3
SHADES = (40 + 10 * np.arange(NUM)).astype(np.uint8)
"""of the images; an input is 20 darker"""
IMAGES = np.broadcast_to(SHADES[:, None, None, None], (NUM, SIZE, SIZE, 3))
INPUTS = IMAGES - 20


def names(folders):
    """Paths in whose order the images are numbered, in folders by label where there are to be classes."""
    return [f"{f'class {LABELS[number]}/' if folders else ''}{number:02d}.png" for number in range(NUM)]


def in_files(folder, paths, images):
    for path, image in zip(paths, images, strict=True):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / path)
    return folder


def folder(path):
    return {"data": in_files(path / "images", names(False), IMAGES)}


def classes(path):
    return {"data": in_files(path / "images", names(True), IMAGES)}


def partners(path):
    for side, images in (("A", INPUTS), ("B", IMAGES)):
        in_files(path / "pairs" / side, names(True), images)
    return {"data": path / "pairs"}


def halves(path):
    return {"data": in_files(path / "images", names(True), np.concatenate([INPUTS, IMAGES], axis=2))}


def npy(path):
    np.save(path / "a.npy", IMAGES)
    return {"data": path / "a.npy"}


def npy_halves(path):
    np.save(path / "a.npy", np.concatenate([INPUTS, IMAGES], axis=2))
    return {"data": path / "a.npy"}


def npz(path):
    np.savez(path / "a.npz", images=IMAGES, labels=LABELS)
    return {"data": path / "a.npz"}


def npz_compressed(path):
    np.savez_compressed(path / "a.npz", images=IMAGES, labels=LABELS)
    return {"data": path / "a.npz"}


def npz_pairs(path):
    np.savez(path / "a.npz", images=IMAGES, inputs=INPUTS, labels=LABELS)
    return {"data": path / "a.npz"}


def example(**features):
    kinds = {bytes: ("bytes_list", tf.train.BytesList), int: ("int64_list", tf.train.Int64List)}
    made = {}
    for name, value in features.items():
        field, kind = kinds[type(value)]
        made[name] = tf.train.Feature(**{field: kind(value=[value])})
    return tf.train.Example(features=tf.train.Features(feature=made)).SerializeToString()


def png(image):
    return tf.io.encode_png(image).numpy()


def in_records(path, records):
    for number, some in enumerate((records[:9], records[9:])):
        with tf.io.TFRecordWriter(str(path / f"part {number}.tfrecord")) as writer:
            for record in some:
                writer.write(record)
    return {"data": path / "part *.tfrecord"}


def tfrecords(path):
    records = [
        example(picture=png(image), kind=int(label), input=png(its_input))
        for image, label, its_input in zip(IMAGES, LABELS, INPUTS, strict=True)
    ]
    given = {"tfrecord": TFRecordConfig(image="picture", label="kind", input="input")}
    return in_records(path, records) | given


def raw_tfrecords(path):
    """Channels first, as some write them, and without labels."""
    records = [example(data=np.moveaxis(image, -1, 0).tobytes()) for image in IMAGES]
    return in_records(path, records) | {"tfrecord": TFRecordConfig(image="data", shape=f"3,{SIZE},{SIZE}")}


def shards(path):
    return prepared(path, classes(path)["data"])


def shards_of_pairs(path):
    return prepared(path, partners(path)["data"], "--pairs")


def prepared(path, source, *more):
    command = [
        sys.executable,
        "-m",
        "hvdgan.prepare",
        source,
        path / "packed",
        "--image-size",
        SIZE,
        "--shards",
        3,
        *more,
    ]
    subprocess.run([str(word) for word in command], check=True, timeout=120, env=environment(), capture_output=True)
    return {"data": path / "packed"}


def keras_set(path):
    """Files where Keras keeps what it has downloaded, of the kind that it does not compare with a checksum."""
    home = path / "datasets" / "fashion-mnist"
    home.mkdir(parents=True)
    contents = {"labels-idx1": LABELS.astype(np.uint8).tobytes(), "images-idx3": b""}
    contents["images-idx3"] = np.broadcast_to(SHADES[:, None, None], (NUM, 28, 28)).tobytes()
    for which in ("train", "t10k"):
        for what, content in contents.items():
            header = bytes(8 if "labels" in what else 16)
            (home / f"{which}-{what}-ubyte.gz").write_bytes(gzip.compress(header + content))
    return {"data": "keras:fashion_mnist", "channels": 3}


# maker, whether there are labels, whether there are pairs
SOURCES = [
    (folder, False, False),
    (classes, True, False),
    (partners, True, True),
    (halves, True, True),
    (npy, False, False),
    (npy_halves, False, True),
    (npz, True, False),
    (npz_compressed, True, False),
    (npz_pairs, True, True),
    (tfrecords, True, False),
    (tfrecords, True, True),
    (raw_tfrecords, False, False),
    (shards, True, False),
    (shards_of_pairs, True, True),
    (keras_set, True, False),
]


def taken(source, steps=STEPS, **changes):
    """Batches joined over the steps: a dict of arrays (steps, B, ...)."""
    with batches_of(source, **{"seed": SEED, "global_batch_size": BATCH} | changes) as batches:
        some = [next(batches) for _ in range(steps)]
    return {name: np.stack([batch[name].numpy() for batch in some]) for name in some[0]}


def together(source, size, steps=STEPS, **changes):
    """The global batches, each put together from its ranks' slices."""
    ranks = [taken(source, steps, rank=rank, size=size, **changes) for rank in range(size)]
    return {name: np.concatenate([rank[name] for rank in ranks], axis=1) for name in ranks[0]}


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.mark.parametrize(
    ("make", "labelled", "paired"), SOURCES, ids=[f"{make.__name__}{', pairs' * paired}" for make, _, paired in SOURCES]
)
def test_one_sequence_for_any_ranks_over_epochs_and_after_resuming(tmp_path, monkeypatch, make, labelled, paired):
    monkeypatch.setattr("keras.src.backend.config._KERAS_DIR", str(tmp_path))  # KERAS_HOME, read when it is imported
    settings = make(tmp_path)
    config = Config(image_size=SIZE, **settings | {"data": str(settings["data"])})
    source = open_source(config, paired=paired)
    assert len(source) == NUM and source.num_classes == (3 if labelled else 0)
    alone = taken(source)
    # Which image each is, by its shade, which lossless files keep to the bit.
    shades = alone["images"][..., -1]
    assert (shades == shades[:, :, :1, :1]).all()
    numbers = (shades[:, :, 0, 0].astype(int) - 40) // 10
    # Every epoch holds each image once, in an order of its own; a batch may straddle two epochs.
    epochs = numbers.reshape(-1)[: 4 * NUM].reshape(4, NUM)
    assert (np.sort(epochs) == np.arange(NUM)).all() and len(np.unique(epochs, axis=0)) == 4
    assert alone["images"].shape == (STEPS, BATCH, SIZE, SIZE, 6 if paired else 3)
    if labelled:
        np.testing.assert_array_equal(alone["labels"], LABELS[numbers])
    if paired:
        np.testing.assert_array_equal(alone["images"][..., :3], alone["images"][..., 3:] - 20)
    for size in (2, 3, 4):
        assert_equal(alone, together(source, size))
    # In the middle of the third epoch another number of ranks resumes, with what is kept of the images.
    resumed = together(cached(source, "memory"), 3, steps=STEPS - 4, start_step=4)
    assert_equal({name: values[4:] for name, values in alone.items()}, resumed)


def test_another_batch_size_continues_at_the_next_sample(tmp_path):
    """As --allow-changed global_batch_size leaves it: from a position that is not a whole number of batches."""
    source = open_source(Config(image_size=SIZE, data=str(npz(tmp_path)["data"])))
    both = [
        taken(source, 3, global_batch_size=6),
        together(source, 2, 4, global_batch_size=8, start_step=3, position=18),
    ]
    seen = np.concatenate([each["index"].reshape(-1) for each in both])
    np.testing.assert_array_equal(seen, sample_indices(SEED, 0, 50, NUM))


def test_what_is_held_out_is_never_trained_on_by_any_rank(tmp_path):
    training, held = hold_out(open_source(Config(image_size=SIZE, data=str(folder(tmp_path)["data"]))), 0.3)
    kept = {int(image[0, 0, 0]) for image in held.samples.fetch_batch(np.arange(len(held)))}
    for size in (1, 3):
        seen = set(together(training, size)["images"][..., 0, 0, 0].reshape(-1).tolist())
        assert seen == set(SHADES.tolist()) - kept


def test_batches_are_copied_to_the_device_ahead():
    """A second logical processor stands for a GPU: what is copied, and that nothing changes."""
    script = """
import numpy as np, tensorflow as tf
cpus = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpus[0], [tf.config.LogicalDeviceConfiguration()] * 2)
from hvdgan.cli.config import Config
from hvdgan.data import open_source
from hvdgan.data.batches import Batches
source = open_source(Config(image_size=8))
options = dict(seed=0, global_batch_size=4, places=(0, 4), position=0, threads=2, prefetch=2, max_bad_fraction=0)
with Batches(source, device="cpu:1", **options) as copied, Batches(source, device=None, **options) as plain:
    for _ in range(5):
        one, other = next(copied), next(plain)
        for name in other:
            place = "cpu:0" if name == "index" else "cpu:1"
            assert one[name].device.lower().endswith(place), one[name].device
            np.testing.assert_array_equal(one[name].numpy(), other[name].numpy())
print("same")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(), capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "same\n", done.stderr
