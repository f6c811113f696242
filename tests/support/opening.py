"""A plugin of pytest that ends the collection with an error that names each module whose import opens a device.

TensorFlow then takes nearly all memory of every GPU that it sees, and the processes that the tests start have none.
"""

import itertools

import pytest
import tensorflow as tf

_threads = itertools.count(1)
_found: list[str] = []


def _is_open() -> bool:
    """Whether TensorFlow has opened its devices: then it refuses another number of threads."""
    try:
        tf.config.threading.set_inter_op_parallelism_threads(next(_threads))
    except RuntimeError:
        return True
    return False


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(collector):
    yield
    if not _found and _is_open():
        _found.append(collector.nodeid)


def pytest_collection_finish():
    if _found:
        raise pytest.UsageError(f"devices are open since the import of {_found[0]}")
