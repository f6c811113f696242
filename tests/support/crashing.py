"""Ends a forked child in the middle of its work, as a power cut would."""

import os
from collections.abc import Callable, Iterable
from typing import Any

_CRASHED = 9


def crashes_before(number: int, work: Callable[[], Any], operations: Iterable[tuple[Any, str]]) -> bool:
    """Run `work` in a forked child that exits just before one of its operations, by its index from 0.

    Operations are functions to count, as (owner, attribute name). Returns False if the work has fewer, and was done.
    """
    child = os.fork()
    if child:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, _CRASHED), f"the work failed before operation {number}: exit code {code}"
        return code == _CRASHED
    left = number

    def counted(operation):
        def call(*arguments, **options):
            nonlocal left
            if left == 0:
                os._exit(_CRASHED)
            left -= 1
            return operation(*arguments, **options)

        return call

    try:
        for owner, name in operations:
            setattr(owner, name, counted(getattr(owner, name)))
        work()
        os._exit(0)
    finally:
        os._exit(1)
