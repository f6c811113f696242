"""Batches that are copied to a device: the same as on the host, until they are closed. The device is a CPU."""

import gc
import itertools
import threading

import numpy as np
import pytest
import tensorflow as tf

from hvdgan.cli.config import Config
from hvdgan.cli.data_config import ArrayConfig
from hvdgan.cli.errors import RunError
from hvdgan.data import open_source
from numbered import numbered
from reading import batches_of

G = 12
THREADS, PREFETCH = 3, 2


def copied(source, device="cpu:0", **changes):
    options = {"global_batch_size": G, "threads": THREADS, "prefetch": PREFETCH, "max_bad_fraction": 0.5}
    return batches_of(source, device=device, **(options | changes))


def of_arrays(folder):
    np.savez(
        folder / "a.npz", x=np.random.default_rng(0).normal(size=(30, 4, 5, 2)).astype(np.float16), energy=range(30)
    )
    settings = {"values": "none", "conditions": ("energy",), "condition_values": "none"}
    source = open_source(Config(data=f"{folder}/a.npz:x", arrays=ArrayConfig(**settings)))
    return source.mapped(source.values)


SOURCES = {
    "pictures": lambda folder: numbered(30, broken=(4, 5)),
    "float16 and conditions": of_arrays,
}


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("start", [0, 3])
def test_copied_batches_are_those_of_the_host_in_their_order(tmp_path, kind, start):
    source = SOURCES[kind](tmp_path)
    with copied(source, start_step=start) as ahead, copied(source, None, start_step=start) as host:
        for mine, theirs in itertools.islice(zip(ahead, host, strict=True), 8):
            assert mine.keys() == theirs.keys()
            for name, values in theirs.items():
                dtype = tf.int64 if name == "labels" else values.dtype
                assert (mine[name].dtype, mine[name].shape) == (dtype, values.shape), name
                np.testing.assert_array_equal(mine[name], values, err_msg=name)


def threads():
    return [each for each in threading.enumerate() if each.name.startswith("reader")]


def test_closing_ends_the_threads_without_the_garbage_collector():
    source = numbered(30, broken=(4, 5))
    gc.disable()
    try:
        batches = copied(source)
        next(batches)
        assert 1 <= len(threads()) <= THREADS
        batches.close()
        assert not threads()
        read = len(source.images.taken)
        with pytest.raises(ValueError, match="closed"):
            next(batches)
        assert len(source.images.taken) == read
    finally:
        gc.enable()


def test_closing_waits_for_the_read_that_is_under_way():
    """As after a lost rank of an elastic run, whose next batches are read in the same process."""
    begun, may_end = threading.Event(), threading.Event()

    def wait(index):
        if len(source.images.taken) > 2 * G:
            begun.set()
            assert may_end.wait(60)

    source = numbered(before=wait)
    batches = copied(source, threads=1)
    next(batches)
    assert begun.wait(60)
    closing = threading.Thread(target=batches.close)
    closing.start()
    may_end.set()
    closing.join(60)
    read = len(source.images.taken)
    assert not closing.is_alive()
    with copied(numbered(), position=G) as others, copied(numbered(), None, position=G) as host:
        np.testing.assert_array_equal(next(others)["index"], next(host)["index"])
    assert len(source.images.taken) == read


@pytest.mark.parametrize(("error", "kind"), [(RunError("the file is gone"), RunError), (KeyError("bug"), KeyError)])
def test_a_failure_arrives_in_its_turn_and_as_it_is(error, kind, capfd):
    failing = next(iter(copied(numbered(), None, start_step=3)))["index"].numpy()[0]

    def fail(index):
        if index == failing:
            raise error

    with copied(numbered(before=fail), prefetch=8) as batches:
        for _ in range(3):
            next(batches)
        with pytest.raises(kind) as caught:
            next(batches)
        assert caught.value is error
    assert "Traceback" not in capfd.readouterr().err
