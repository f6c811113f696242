import gc
import inspect
import math
import os
import sys
import time
import types

import pytest

from hvdgan.cli import start

# As a command starts: each run that is built looks for garbage, and among modules that took a third of a second.
start.begin("__main__")

import keras  # noqa: E402

from hvdgan.training.page import write_page  # noqa: E402
from messages import Messages  # noqa: E402

start.imported()

STARTS_PROCESSES = ("subprocess", "multiprocessing", "pty", "psutil", "selenium")
TRAINS = {
    ("hvdgan.train", "main"),
    ("hvdgan.api", "fit"),
    ("hvdgan.training.build", "build"),
    ("hvdgan.training.build", "make_trainable"),
    ("hvdgan.training.train_state", "build_state"),
}


def pytest_addoption(parser):
    parser.addoption("--update-messages", action="store_true", help="write tests/messages.txt anew")
    parser.addoption("--none-after", type=float, help="begin no test after this time, in seconds since 1970")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark what starts processes or builds a run as slow, by what a test and its fixtures call: no list goes stale."""
    known = {}
    for item in items:
        fixtures = [each.func for several in item._fixtureinfo.name2fixturedefs.values() for each in several]  # noqa: SLF001
        if any(_is_slow(function, known) for function in [item.function, *fixtures]):
            item.add_marker("slow")


def pytest_runtest_setup(item):
    if time.time() > (item.config.getoption("none_after") or math.inf):
        pytest.skip("there was no time left for it")


def _is_slow(function, known):
    """Whether a function or class of the tests starts processes or builds a run, itself or in what it calls."""
    function = inspect.unwrap(function) if inspect.isroutine(function) else function
    if not isinstance(function, type | types.FunctionType):
        return False
    if function in known:
        return known[function]
    known[function] = False  # until it is known: functions may call each other
    if f"{os.sep}tests{os.sep}" not in str(getattr(sys.modules.get(function.__module__), "__file__", "")):
        return False
    if isinstance(function, type):
        known[function] = any(_is_slow(each, known) for each in [*vars(function).values(), *function.__bases__])
        return known[function]
    codes, names = [function.__code__], set()
    while codes:
        code = codes.pop()
        names |= set(code.co_names)
        codes += [each for each in code.co_consts if isinstance(each, types.CodeType)]
    values = [function.__globals__[name] for name in names if name in function.__globals__]
    modules = [each for each in values if isinstance(each, types.ModuleType)]
    values += [vars(module)[name] for module in modules for name in names if name in vars(module)]
    starts = any(module.__name__.partition(".")[0] in STARTS_PROCESSES for module in modules)
    trains = any((getattr(each, "__module__", ""), getattr(each, "__name__", "")) in TRAINS for each in values)
    known[function] = starts or trains or any(_is_slow(each, known) for each in values)
    return known[function]


@pytest.fixture
def messages(request, capsys):
    """Compares what commands answer with the golden table; see tests/support/messages.py."""
    return Messages(request.config.getoption("update_messages"), capsys)


@pytest.fixture(autouse=True)
def float32():
    """A run in another precision leaves its policy behind."""
    keras.config.set_dtype_policy("float32")


@pytest.fixture(scope="session", autouse=True)
def no_reports():
    """A run of this process, also one of a fixture of a module, does not start hvdgan.report, which takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hvdgan.training.page.write_page", lambda *_: "")
        yield


@pytest.fixture(autouse=True)
def reports(request, monkeypatch):
    """The runs of a test that is marked so start it; launching.train() asks for no report."""
    if request.node.get_closest_marker("reports") is not None:
        monkeypatch.setattr("hvdgan.training.page.write_page", write_page)


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
