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
    ("on_gpu", "over_mpi", "pair", "elastic", "expected"),
    [
        (False, True, True, False, {CYCLE: "0.1", FUSION: "1048576", YIELDS: "1"}),
        (False, False, True, True, {CYCLE: "0.2", FUSION: "1048576"}),
        (False, True, False, False, {CYCLE: "0.5", YIELDS: "1"}),
        (False, False, False, False, {}),
        (True, True, True, False, {ASYNC: "1"}),
        (True, False, True, True, {}),  # lost ranks must be noticed
    ],
)
def test_cpus_have_short_cycles_and_yield_and_gpus_do_not_wait_for_reductions(
    variables, on_gpu, over_mpi, pair, elastic, expected
):
    set_defaults(on_gpu=on_gpu, over_mpi=over_mpi, pair=pair, elastic=elastic)
    assert variables() == {**ALWAYS, **expected}


def test_what_the_user_has_set_stays(variables):
    mine = {CYCLE: "7", FUSION: "0", YIELDS: "0", "HOROVOD_GLOO_TIMEOUT_SECONDS": "9"}
    os.environ.update(mine)
    set_defaults(on_gpu=False, over_mpi=True, pair=True)
    assert variables() == {**ALWAYS, **mine}
