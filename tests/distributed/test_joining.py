"""Processes become ranks, of an elastic run again after each change; tests/parallel and tests/training/test_elastic.py
have several of them."""

import os

import pytest

from hvdgan.cli.errors import UserError
from hvdgan.distributed import joining
from hvdgan.distributed.joining import set_defaults

CYCLE, FUSION, YIELDS = "HOROVOD_CYCLE_TIME", "HOROVOD_FUSION_THRESHOLD", "OMPI_MCA_mpi_yield_when_idle"


def test_another_number_of_ranks_than_expected_is_refused(no_launcher):
    with pytest.raises(UserError, match="--expect-size 4: there are 1 ranks"):
        joining.start(expect_size=4)


@pytest.mark.parametrize(
    ("on_gpu", "over_mpi", "pair", "elastic", "expected"),
    [
        (False, True, True, False, {CYCLE: "0.1", FUSION: "1048576", YIELDS: "1"}),
        (False, False, True, True, {CYCLE: "0.2", FUSION: "1048576"}),
        (False, True, False, False, {CYCLE: "0.5", YIELDS: "1"}),
        (False, False, False, False, {}),
        (True, True, True, False, {"HOROVOD_ENABLE_ASYNC_COMPLETION": "1"}),
        (True, False, True, True, {}),  # lost ranks must be noticed
    ],
)
def test_defaults_of_horovod_differ_between_cpus_and_gpus_and_what_the_user_has_set_stays(
    monkeypatch, on_gpu, over_mpi, pair, elastic, expected
):
    expected = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "300", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "600", **expected}
    mine = {name: "7" for name in expected}
    for given, left in (({}, expected), (mine, mine)):
        monkeypatch.setattr(os, "environ", dict(given))
        set_defaults(on_gpu=on_gpu, over_mpi=over_mpi, pair=pair, elastic=elastic)
        assert os.environ == left
