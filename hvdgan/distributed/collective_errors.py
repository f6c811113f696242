"""Turns an error of a Horovod collective into one line that names the rank that is lost."""

import contextlib
from collections.abc import Callable, Iterator

import tensorflow as tf

from hvdgan.errors import LostPeer, RunError


def collective_failure(error: tf.errors.OpError, who: Callable[[], str | None]) -> RunError | None:
    """The RunError for a TensorFlow error that comes from a collective; None for any other; `who` names a lost rank."""
    lines = [line.strip() for line in error.message.splitlines()]
    of_horovod = [line for line in lines if "Horovod" in line]
    if not of_horovod:
        return None
    sentences = [line for line in of_horovod if " " in line and "node" not in line] or of_horovod
    hint = who() or "the rank that has failed logs the cause"
    # A lost rank is an UnknownError. Tensors that do not match, for example, are errors of other kinds.
    kind = LostPeer if isinstance(error, tf.errors.UnknownError) else RunError
    return kind(f"a collective has failed: {sentences[-1][:300]}; {hint}")


@contextlib.contextmanager
def failures_in_words(who: Callable[[], str | None]) -> Iterator[None]:
    """Replace the errors of collectives within by collective_failure(): a LostPeer, or another RunError."""
    try:
        yield
    except tf.errors.OpError as error:
        if failure := collective_failure(error, who):
            raise failure from error
        raise
