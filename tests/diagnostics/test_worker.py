"""How a process is bound to cores."""

import os

import pytest

from hvdgan.diagnostics.speed.worker import bind


@pytest.mark.parametrize(("cores", "expected"), [(0, [0, 1]), (1, [0, 1]), (2, [0, 0])])
def test_processes_of_a_host_have_their_share_of_its_cores(monkeypatch, cores, expected):
    bound = []
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "1")  # which bind() sets, and nobody else would take back
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4, 5})
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, mine: bound.append(min(mine) - 4))
    for index in range(2):
        bind(cores, 2, index)
    assert bound == expected
