"""Failures of disk, network or memory do not count as broken images: one line names the file on every rank.
Modules: data.sharing"""

import builtins
import errno
import os
import threading

import pytest

from hvdgan.data import bad_files, open_source
from hvdgan.errors import RunError, UserError
from hvdgan.errors.shared_errors import ALONE
from hvdgan.settings.config import Config
from packed import write_images
from thread_ranks import Threads


@pytest.fixture
def folder(tmp_path):
    """Ten images in two classes, 000 to 009 in turn."""
    return write_images(tmp_path / "images")


def opened(folder, peers=ALONE, **changes):
    """Where a class that vanishes or a few broken images would not be too many."""
    settings = {"image_size": 8, "fit": "crop", "max_bad_fraction": 0.9, **changes}
    return open_source(Config(data=str(folder), **settings), peers=peers)


def let_fail(monkeypatch, what, name, number, thread=None):
    """From now on a function that takes a path fails at the path that ends like this; in one thread, if it is named."""
    module, function = what
    original = getattr(module, function, getattr(builtins, function, None))

    def fail(path, *rest, **options):
        here = thread in (None, threading.current_thread().name)
        if here and isinstance(path, str) and path.rstrip("/").endswith(name):
            raise OSError(number, os.strerror(number), path)
        return original(path, *rest, **options)

    monkeypatch.setattr(module, function, fail, raising=False)


LIST, OPEN = (os, "scandir"), (bad_files, "open")
FAILURES = [
    (LIST, "class 1", errno.EIO, RunError),
    (LIST, "class 1", errno.EACCES, UserError),
    (OPEN, "class 1/003.png", errno.EIO, RunError),
]


@pytest.mark.parametrize(("what", "name", "number", "kind"), FAILURES)
def test_what_fails_on_one_rank_ends_the_opening_on_all(folder, monkeypatch, what, name, number, kind):
    """No rank is left to wait for one that has ended."""
    let_fail(monkeypatch, what, name, number, thread="rank 0")
    failures = Threads().run(lambda peers: opened(folder, peers))
    assert [type(failure) for failure in failures] == [kind] * 2, failures
    message = str(failures[0])
    assert message == str(failures[1]) and message.startswith(f"--data {folder}: ") and "\n" not in message
    assert name in message and os.strerror(number) in message


def test_a_file_that_a_rank_does_not_see_is_no_broken_image(folder):
    source = opened(folder)
    (folder / "class 1" / "003.png").unlink()
    with pytest.raises(RunError) as caught:
        source.fetch(6)
    message = str(caught.value)
    assert message.startswith(f"--data {folder}: class 1/003.png was listed by rank 0, and is gone, or ")
    assert f"{os.uname().nodename} does not see it: No such file or directory" in message and "\n" not in message
