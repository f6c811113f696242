"""Processes become ranks; tests/parallel has several of them."""

import shutil
import subprocess

import pytest

from hvdgan.cli.errors import UserError
from hvdgan.distributed import joining
from launching import BIN, run

CAN_RENAME = shutil.which("unshare") is not None and not subprocess.call(
    ["unshare", "-u", "true"], stderr=subprocess.DEVNULL
)


def test_one_process_joins_nobody(no_launcher):
    no_launcher.setattr(joining.backend, "horovod", lambda: pytest.fail("Horovod was imported"))
    ranks = joining.start()
    assert (ranks.rank, ranks.size, ranks.launcher, ranks.is_root) == (0, 1, "none", True)


def test_a_copy_is_alone_under_a_launcher(no_launcher):
    no_launcher.setenv("HOROVOD_SIZE", "4")
    no_launcher.setenv("HOROVOD_RANK", "3")
    ranks = joining.alone()
    assert (ranks.rank, ranks.size) == (0, 1)


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
