"""Batches: any number of ranks reads the samples of one, also with broken files and after resuming."""

import itertools
import re
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
from PIL import Image

import reading
from hvdgan.cli.config import Config
from hvdgan.cli.errors import RunError
from hvdgan.data import BadFile, open_source
from hvdgan.data.batches import ImageReader
from hvdgan.data.order import sample_indices
from hvdgan.values.sample_values import Layout
from numbered import Numbered, numbered

G = 12  # divisible by 1, 2, 3 and 4 ranks


def batches_of(source, **changes):
    options = {"seed": 1, "global_batch_size": G, "threads": 3, "prefetch": 2, "max_bad_fraction": 1.0}
    return reading.batches_of(source, **(options | changes))


def first(steps, source, **changes):
    """The first batches, joined: a dict of arrays."""
    with batches_of(source, **changes) as batches:
        taken = [{name: value.numpy() for name, value in batch.items()} for batch in itertools.islice(batches, steps)]
    return {name: np.stack([batch[name] for batch in taken]) for name in taken[0]}


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.fixture
def folder(tmp_path):
    """Seven images of which the fourth has a header and no pixels, and a text."""
    noise = np.random.default_rng(0).integers(0, 256, (7, 40, 40, 3), dtype=np.uint8)
    for index in range(7):
        Image.fromarray(noise[index]).save(tmp_path / f"nummer {index} ü.png")
    cut = tmp_path / "nummer 3 ü.png"
    cut.write_bytes(cut.read_bytes()[:2000])
    (tmp_path / "text.png").write_text("text")
    return tmp_path


def open_folder(folder):
    return open_source(Config(data=str(folder), image_size=16, max_bad_fraction=0.5))


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("kind", ["folder", "numbered", "digits"])
def test_ranks_share_out_what_one_rank_sees(folder, kind, size):
    source = {
        "folder": lambda: open_folder(folder),
        "numbered": lambda: numbered(9, broken=(4, 5)),
        "digits": lambda: open_source(Config(data="digits", image_size=8)),
    }[kind]()
    alone = first(4, source)  # more than five epochs of the folder
    ranks = [first(4, source, rank=rank, size=size) for rank in range(size)]
    assert_equal(alone, {name: np.concatenate([rank[name] for rank in ranks], axis=1) for name in alone})


def test_a_broken_image_is_replaced_by_the_next_good_one():
    source = numbered(9, broken=(4, 5, 8))
    with batches_of(source) as batches:
        got = np.concatenate([next(batches)["index"].numpy() for _ in range(3)])
        bad = batches.bad_files
    wanted = np.concatenate([sample_indices(1, G * step, G, 9) for step in range(3)])
    replaced = np.array([0, 1, 2, 3, 6, 6, 6, 7, 0])
    np.testing.assert_array_equal(got, replaced[wanted])
    assert sorted(bad) == [("image 4", "broken"), ("image 5", "broken"), ("image 8", "broken")]


def test_a_broken_image_is_not_tried_again_every_epoch():
    source = numbered(9, broken=(4,))
    first(12, source, threads=1)
    assert 1 <= source.images.taken.count(4) <= 2 < source.images.taken.count(3)


def test_broken_files_are_counted_once_and_with_those_of_the_opening(folder):
    source = open_folder(folder)
    source = source.replace(bad_files=[*source.bad_files, BadFile("A/1.png", "no partner in B")])
    with batches_of(source) as batches:
        for _ in range(5):
            next(batches)
        assert sorted(name for name, _ in batches.bad_files) == ["A/1.png", "nummer 3 ü.png", "text.png"]
        assert "truncated" in dict(batches.bad_files)["nummer 3 ü.png"]


def test_batches_follow_the_order_and_labels_stay_with_their_images():
    source = numbered(10)
    got = first(5, source)
    assert {name: (value.shape[1:], value.dtype) for name, value in got.items()} == {
        "images": ((G, 2, 2, 1), np.uint8),
        "index": ((G,), np.int64),
        "numbers": ((G,), np.int64),
        "labels": ((G,), np.int32),
    }
    np.testing.assert_array_equal(got["index"], [sample_indices(1, G * step, G, 10) for step in range(5)])
    np.testing.assert_array_equal(got["images"], np.broadcast_to(got["index"][..., None, None, None], (5, G, 2, 2, 1)))
    np.testing.assert_array_equal(got["labels"], got["index"] * 2)


def test_labels_stay_with_images_that_replace_others():
    got = first(5, numbered(10, broken=(2, 3)))
    assert not np.isin(got["index"], (2, 3)).any()
    np.testing.assert_array_equal(got["images"][..., 0, 0, 0], got["index"])
    np.testing.assert_array_equal(got["labels"], got["index"] * 2)


def test_a_source_without_labels_yields_none(folder):
    assert first(1, open_folder(folder)).keys() == {"images", "index", "numbers"}


def test_shapes_are_static(folder):
    with batches_of(open_folder(folder)) as batches:
        assert next(batches)["images"].shape == (G, 16, 16, 3)


@pytest.mark.parametrize("start", [1, 4])
def test_resuming_gives_what_the_uninterrupted_run_had(folder, start):
    source = open_folder(folder)
    whole = first(6, source)
    resumed = first(6 - start, source, start_step=start)
    assert_equal({name: value[start:] for name, value in whole.items()}, resumed)


def test_resuming_reads_nothing_that_came_before():
    source = numbered(200)
    first(2, source, start_step=5, rank=1, size=2)
    before = {index for step in range(5) for index in sample_indices(1, G * step, G, 200)}
    other_rank = {index for step in (5, 6) for index in sample_indices(1, G * step, G, 200)[: G // 2]}
    assert source.images.taken and not set(source.images.taken) & (before | other_rank)


@pytest.mark.parametrize(("threads", "prefetch"), [(1, 1), (1, 4), (8, 3)])
def test_threads_and_prefetch_change_nothing(folder, threads, prefetch):
    source = open_folder(folder)
    assert_equal(first(4, source), first(4, source, threads=threads, prefetch=prefetch))


def test_seeds_differ():
    assert (first(2, numbered(50))["index"] != first(2, numbered(50), seed=2)["index"]).any()


def test_too_many_broken_images_stop_the_run(capfd):
    source = numbered(90, broken=range(0, 90, 3), bad_files=[("found earlier.png", "empty file")] * 10)
    with batches_of(source, max_bad_fraction=0.12) as batches, pytest.raises(RunError) as caught:
        for _ in range(100):
            next(batches)
    # 12 of 100 are allowed.
    message = str(caught.value)
    assert type(caught.value) is RunError and caught.value.exit_code == 1
    # Another thread may have found one more by then.
    assert re.match(r"--data numbered: 1[3-6] of 100 images cannot be read: found earlier.png \(empty file\)", message)
    assert "--max-bad-fraction (now 0.12)" in message and "\n" not in message
    assert "Traceback" not in capfd.readouterr().err


def test_a_tolerated_number_of_broken_images_does_not_stop_the_run():
    with batches_of(numbered(100, broken=range(12)), max_bad_fraction=0.12) as batches:
        for _ in range(20):
            next(batches)
        assert len(batches.bad_files) == 12


def test_no_image_left():
    with batches_of(numbered(5, broken=range(5))) as batches, pytest.raises(RunError, match="none of its 5 images"):
        next(batches)


def test_batches_before_a_failure_arrive():
    order = np.concatenate([sample_indices(1, G * step, G, 1000) for step in range(6)])
    past_the_failure = threading.Event()

    def note(index):
        if index == order[5 * G]:
            past_the_failure.set()

    source = numbered(1000, broken=[order[4 * G]], before=note)  # the first sample of the fifth batch
    with batches_of(source, max_bad_fraction=0.0, threads=1, prefetch=10) as batches:
        next(batches)
        assert past_the_failure.wait(timeout=60)
        for _ in range(3):
            next(batches)
        with pytest.raises(RunError, match="1 of 1000 images"):
            next(batches)


def test_any_other_exception_arrives_as_it_is(capfd):
    source = numbered(5, before=lambda index: np.zeros(0)[index])
    with batches_of(source) as batches, pytest.raises(IndexError, match="out of bounds for axis 0"):
        next(batches)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(("side", "batch", "most"), [(2, 12, 12), (1024, 6, 2), (2048, 3, 1)])
def test_an_evaluation_reads_each_sample_once_and_large_ones_in_small_portions(side, batch, most):
    class Large(Numbered):
        def read(self, indices):
            asked.append(len(indices))
            return np.broadcast_to(super().read(indices)[:, :1, :1], (len(indices), side, side, 4))

    asked, store, indices = [], Large(20, broken=(4,)), np.arange(2 * batch).reshape(2, batch)
    source = numbered(20).replace(images=store, layout=Layout((side, side, 4)))
    reader = ImageReader(source, batch, 3)
    for numbers, (images, readable) in zip(indices, reader(indices), strict=True):
        whole = (numbers != 4) & (numbers < 20)
        np.testing.assert_array_equal(readable, whole)
        np.testing.assert_array_equal(images[:, 0, 0, 0], np.where(whole, numbers, 0))
    assert max(asked) <= most and set(reader.bad) == {4}


def test_closing_ends_the_reading():
    source = numbered(1000)
    batches = batches_of(source)
    next(batches)
    batches.close()
    read = len(source.images.taken)
    batches.close()
    with pytest.raises(ValueError, match="closed"):
        next(batches)
    assert len(source.images.taken) == read < 1000


@pytest.mark.parametrize("ending", ["", "raise SystemExit(7)", "del batches"])
def test_the_interpreter_exits_while_batches_are_read(ending):
    script = """
        import atexit

        def report():
            try:
                next(batches)
            except (ValueError, NameError) as error:
                print(error)

        atexit.register(report)  # before the others, so that it runs after them

        import numpy as np
        from hvdgan.data.batches import Batches
        from hvdgan.data.samples import of_pictures
        from hvdgan.data.store import Store

        class Busy(Store):
            def read(self, indices):
                sum(range(200_000))  # holds the interpreter most of the time
                return np.zeros((len(indices), 2, 2, 1), np.uint8)

        source = of_pictures(Busy("busy", (10, 2, 2, 1), "u1"), name="busy", image_size=2, channels=1, told_by=[])
        batches = Batches(source, seed=0, global_batch_size=4, places=(0, 4), position=0, threads=4, prefetch=50,
                          max_bad_fraction=0, device=None)
        next(batches)
        print("has a batch")
    """
    code = f"{textwrap.dedent(script)}\n{ending}\n"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    gone = "name 'batches' is not defined" if ending.startswith("del") else "these batches are closed"
    assert ended.stdout == f"has a batch\n{gone}\n"
    assert ended.returncode == (7 if "7" in ending else 0)
    assert not any(word in ended.stderr for word in ("Traceback", "Fatal", "terminate"))
