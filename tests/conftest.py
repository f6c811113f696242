import gc
import os

import pytest

from hvdgan.cli import start

# As a command starts: each run that is built looks for garbage, and among modules that took a third of a second.
start.begin("__main__")

import keras  # noqa: E402

from messages import Messages  # noqa: E402

start.imported()


def pytest_addoption(parser):
    parser.addoption("--update-messages", action="store_true", help="write tests/messages.txt anew")


@pytest.fixture
def messages(request, capsys):
    """Compares what commands answer with the golden table; see tests/support/messages.py."""
    return Messages(request.config.getoption("update_messages"), capsys)


@pytest.fixture(autouse=True)
def float32():
    """A run in another precision leaves its policy behind."""
    keras.config.set_dtype_policy("float32")


@pytest.fixture(autouse=True)
def no_reports(request, monkeypatch):
    """A run of this process does not start hvdgan.report; launching.train() asks for no report."""
    if request.node.get_closest_marker("reports") is None:
        monkeypatch.setattr("hvdgan.training.page.write", lambda _: True)


@pytest.fixture
def no_launcher(monkeypatch):
    """An environment that no launcher has touched."""
    for name in list(os.environ):
        if name.startswith(("HOROVOD_", "OMPI_COMM", "PMI", "SLURM_")):
            monkeypatch.delenv(name)
    return monkeypatch


@pytest.fixture(autouse=True)
def set_aside():
    """Set aside what stays after a test: each run that is built would look for garbage among all runs before it."""
    yield
    gc.collect()
    gc.freeze()
