"""Turns the errors of collectives into one line that names the rank that is gone."""

import contextlib
from collections.abc import Callable, Iterator

import tensorflow as tf

from hvdgan.cli.errors import LostPeer, RunError


def collective_failure(error: tf.errors.OpError, who: Callable[[], str | None]) -> RunError | None:
    """What to say where an error of TensorFlow's is that of a collective; None for any other.

    Args:
        error: the message of a whole graph holds the place in the code, and below it what Horovod says.
        who: asked then which rank is gone.
    """
    lines = [line.strip() for line in error.message.splitlines()]
    said = [line for line in lines if "Horovod" in line]
    if not said:
        return None
    spoken = [line for line in said if " " in line and "node" not in line] or said
    hint = who() or "if one of them has left, what it said tells why"
    # Tensors that do not match, and the like, are errors of other kinds.
    kind = LostPeer if isinstance(error, tf.errors.UnknownError) else RunError
    return kind(f"talking to the other ranks failed: {spoken[-1][:300]}; {hint}")


@contextlib.contextmanager
def failures_in_words(who: Callable[[], str | None]) -> Iterator[None]:
    """Let the errors of collectives within be what collective_failure() makes of them.

    Raises:
        LostPeer, RunError: a collective has failed.
    """
    try:
        yield
    except tf.errors.OpError as error:
        if failure := collective_failure(error, who):
            raise failure from error
        raise
