"""Processes become ranks, of an elastic run again after each change; tests/parallel and tests/training/test_elastic.py
have several of them."""

import os
import shutil
import subprocess

import pytest

from hvdgan.cli.errors import UserError
from hvdgan.distributed import joining
from hvdgan.distributed.joining import set_defaults
from launching import BIN, run

CYCLE, FUSION, YIELDS = "HOROVOD_CYCLE_TIME", "HOROVOD_FUSION_THRESHOLD", "OMPI_MCA_mpi_yield_when_idle"
CAN_RENAME = shutil.which("unshare") is not None and not subprocess.call(
    ["unshare", "-u", "true"], stderr=subprocess.DEVNULL
)


def test_one_process_joins_nobody(no_launcher):
    no_launcher.setattr(joining.backend, "horovod", lambda: pytest.fail("Horovod was imported"))
    ranks = joining.start()
    assert (ranks.rank, ranks.size, ranks.launcher, ranks.is_root) == (0, 1, "none", True)


def test_another_number_of_ranks_than_expected_is_refused(no_launcher):
    with pytest.raises(UserError, match="--expect-size 4: there are 1 ranks"):
        joining.start(expect_size=4)


@pytest.mark.skipif(not CAN_RENAME, reason="no right to change the name of the host")
def test_a_host_name_without_an_address_is_named_by_the_doctor_and_before_ranks_meet(tmp_path):
    words = f"hostname none.invalid && PATH={BIN}:$PATH && "
    train = "horovodrun -np 2 --gloo python -m hvdgan.train --recipe tiny:Tiny --image-size 8 --global-batch-size 8"
    done = run(["unshare", "-u", "sh", "-c", f"{words} {train} --steps 1 --run-dir run"], tmp_path)
    lines = [line for line in done.stderr.splitlines() if "hvdgan: rank" in line]
    assert done.returncode and len(lines) in (1, 2) and "139" not in done.stderr, done.stderr
    assert all("the name of this host has no address: none.invalid (" in line for line in lines)
    assert "/etc/hosts" in lines[0] and "Exit code: 2" in done.stdout + done.stderr
    done = run(["unshare", "-u", "sh", "-c", f"{words} python -m hvdgan.doctor"], tmp_path)
    (row,) = [line for line in done.stdout.splitlines() if "host name" in line]
    assert "warn" in row and "none.invalid" in row


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
