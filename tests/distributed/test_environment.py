"""Defaults of the variables of Horovod and MPI differ between CPU and GPU, and never replace a user's values."""

import os

import pytest

from hvdgan.distributed.environment import set_defaults

ASYNC = "HOROVOD_ENABLE_ASYNC_COMPLETION"
CYCLE, FUSION, YIELDS = "HOROVOD_CYCLE_TIME", "HOROVOD_FUSION_THRESHOLD", "OMPI_MCA_mpi_yield_when_idle"
ALWAYS = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "300", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "600"}


@pytest.fixture(autouse=True)
def variables(monkeypatch):
    """The environment of a user who has set nothing of it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOROVOD_", "OMPI_"))}
    monkeypatch.setattr(os, "environ", kept)
    return lambda: {name: value for name, value in kept.items() if name.startswith(("HOROVOD_", "OMPI_"))}


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({"over_mpi": True, "pair": True}, {CYCLE: "0.1", FUSION: "1048576", YIELDS: "1"}),
        ({"over_mpi": False, "pair": True}, {CYCLE: "0.2", FUSION: "1048576"}),
        ({"over_mpi": True, "pair": False}, {CYCLE: "0.5", YIELDS: "1"}),
        ({"over_mpi": False, "pair": False}, {}),
    ],
)
def test_ranks_on_cpus_have_short_cycles_and_yield(variables, where, expected):
    set_defaults(on_gpu=False, **where)
    assert variables() == {**ALWAYS, **expected}


@pytest.mark.parametrize("over_mpi", [False, True])
@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize(("elastic", "expected"), [(False, {ASYNC: "1"}), (True, {})])
def test_on_gpus_the_host_does_not_wait_for_reductions_unless_lost_ranks_must_be_noticed(
    variables, over_mpi, pair, elastic, expected
):
    """Buffers, cycles and streams are Horovod's own."""
    set_defaults(on_gpu=True, over_mpi=over_mpi, pair=pair, elastic=elastic)
    assert variables() == {**ALWAYS, **expected}


def test_what_the_user_has_set_stays(variables):
    mine = {CYCLE: "7", FUSION: "0", YIELDS: "0", "HOROVOD_GLOO_TIMEOUT_SECONDS": "9"}
    os.environ.update(mine)
    set_defaults(on_gpu=False, over_mpi=True, pair=True)
    assert variables() == {**ALWAYS, **mine}
