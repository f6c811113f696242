"""Data of the user's own: anything with len() and [i]. Modules: data.own_data"""

import sys

import numpy as np
import pytest

from hvdgan.cli.config import Config
from hvdgan.cli.data_config import ArrayConfig
from hvdgan.cli.errors import RunError, UserError
from hvdgan.data import BadImage, open_source
from reading import batches_of
from thread_ranks import Threads

MODULE = '''
import threading

import numpy as np

THREADS = set()


class Fields:
    """40 fields of 8 x 8, in the range [0, 1], with a class and two conditions each."""

    def __init__(self, count=40, broken=None, scale=1.0):
        self.fields = scale * np.random.default_rng(0).random((count, 8, 8), np.float32)
        self.broken = broken

    def __len__(self):
        return len(self.fields)

    def __getitem__(self, index):
        THREADS.add(threading.get_ident())
        if index == self.broken:
            raise KeyError("no such field")
        return {"images": self.fields[index], "labels": index % 4, "conditions": [float(index), 0.5 * index]}


class Pictures:
    labels = [0, 1] * 10
    class_names = ["even", "odd"]

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return np.full((8, 8, 3), 10 * index, np.uint8)


class Faulty(Pictures):
    def __init__(self, how):
        self.how = how

    def __getitem__(self, index):
        if index == 5 and self.how != "shape":
            raise {"error": ValueError, "disk": OSError}[self.how]("broken")
        return np.zeros((8 - (index == 5 and self.how == "shape"), 8), np.float32)


def chosen(part):
    return {"first": pictures, "no": 3}[part]


pictures = Pictures()
'''


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "my_data.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_data", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("my_data", None)


def opened(name, *options, paired=False, **arrays):
    config = Config(data=f"my_data:{name}", data_options=options, arrays=ArrayConfig(**arrays))
    return open_source(config, paired=paired)


def test_a_class_gives_fields_with_labels_and_conditions():
    source = opened("Fields", "count=20")
    assert (len(source), source.layout.shape, source.num_classes, source.is_pictures) == (20, (8, 8, 1), 4, False)
    expected = np.random.default_rng(0).random((20, 8, 8), np.float32)
    np.testing.assert_array_equal(source.fetch_batch(np.array([7, 3, 3])), expected[[7, 3, 3], ..., None])
    np.testing.assert_array_equal(source.labels, np.arange(20) % 4)
    np.testing.assert_array_equal(source.conditions, np.outer(np.arange(20), [1, 0.5]))
    assert source.values.images.chains[0][0].name == "range"


def test_an_object_gives_pictures_and_a_function_chooses_one():
    for source in (opened("pictures"), opened("chosen", "part=first")):
        assert source.is_pictures and source.class_names == ["even", "odd"] and source.labels[1] == 1
        assert source.fetch(3)[0, 0].tolist() == [30, 30, 30]


def test_an_item_that_raises_an_error_or_has_another_shape_is_a_bad_one():
    for how, words in (("error", "ValueError: broken"), ("shape", r"\(7, 8\)")):
        source = opened("Faulty", f"how={how}", values="none")
        with pytest.raises(BadImage, match=rf"my_data:Faulty\[5\]: .*{words}"):
            source.fetch(5)
        assert source.fetch(2).shape == (8, 8, 1)
    with pytest.raises(UserError, match="my_data:Fields.5.: KeyError.*the labels of every item"):
        opened("Fields", "broken=5")
    with pytest.raises(RunError, match=r"my_data:Faulty\[5\]: OSError: broken"):  # a disk that fails breaks no item
        opened("Faulty", "how=disk", values="none")


def test_any_number_of_ranks_has_the_same_data_and_shares_what_is_read_at_the_start():
    alone = opened("Fields")
    config = Config(data="my_data:Fields")
    found = {}

    def work(peers):
        found[peers.rank] = open_source(config, peers=peers)

    assert Threads(3).run(work) == [None] * 3
    for source in found.values():
        assert source.fingerprint == alone.fingerprint
        np.testing.assert_array_equal(source.labels, alone.labels)
        np.testing.assert_array_equal(source.conditions, alone.conditions)
    others = (opened("Fields", *options).fingerprint for options in ([], ["count=39"], ["scale=0.5"]))
    assert len({*others}) == 3


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("Fields", ["count"], "--data-options count: expected KEY=VALUE"),
        ("pictures", ["part=first"], "--data-options part=first: my_data:pictures is an object"),
        ("chosen", ["part=no"], r"my_data:chosen: int has no len\(\) and \[i\]"),
    ],
)
def test_what_is_no_data_is_refused_in_one_line(name, options, words):
    with pytest.raises(UserError, match=words) as caught:
        opened(name, *options)
    assert "\n" not in str(caught.value)


def test_one_thread_reads_if_one_is_asked_for():
    source = opened("Fields")
    sys.modules["my_data"].THREADS.clear()
    with batches_of(source, global_batch_size=4, threads=1) as batches:
        assert len([next(batches) for _ in range(5)]) == 5 and len(sys.modules["my_data"].THREADS) == 1
