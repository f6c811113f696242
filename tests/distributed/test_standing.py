"""Stragglers end the run; a rank that works for long while the others wait does not. Under each controller.
Modules: distributed.liveness.activity"""

import re
import sys

import pytest

from hvdgan.pages import run_facts
from hvdgan.pages.run_status import status_of
from launching import EACH_CONTROLLER, launcher, run

STALL_SECONDS = 5
# So long a rank may stand still at most, with all that a busy machine and a launcher add.
BOUND = 480
FLAGS = "--recipe failing:Evaluated --image-size 8 --global-batch-size 16 --sample-every 0 --report never".split()
FLAGS += ["--run-dir", "run"]
SOON = ["--peer-timeout", "60", "--stall-timeout", str(STALL_SECONDS)]
ENDLESS = "--steps 1000000 --checkpoint-every 0 --eval-every 0".split()
FEW = "--steps 60 --checkpoint-every 0 --eval-every 0".split()


def train(folder, controller, *words, fault, seconds=BOUND, limits=SOON, **env):
    """Two ranks with a fault; how they ended, and their output without the launcher's tags.

    Open MPI puts these before each piece that a rank writes of a stack.
    """
    (folder / "faults").mkdir()
    for name in fault:
        (folder / "faults" / name).touch()
    command = [*launcher(2, controller), sys.executable, "-m", "hvdgan.train", *FLAGS, *limits, *words]
    done = run(command, folder, seconds=seconds, forked=True, HVDGAN_FAULTS=str(folder / "faults"), **env)
    said = re.sub(r"\[\d(,\d)?\]<std(out|err)>:", "", done.stdout + done.stderr)
    assert not list((folder / "faults").iterdir()), said
    return done, said


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.long), 1])
@pytest.mark.parametrize("controller", EACH_CONTROLLER)
def test_a_rank_that_stands_still_between_two_steps_is_named_with_its_place(tmp_path, controller, rank):
    done, said = train(tmp_path, controller, *ENDLESS, fault=[f"batch-{rank}-stand_still"])
    assert done.returncode != 0 and "<stderr>:Traceback" not in done.stdout + done.stderr, said
    log = (tmp_path / "run" / "log.txt").read_text()
    named = f"is alive and has made no progress for {STALL_SECONDS} s, while others wait for it: between two meetings, "
    (line,) = [line for line in log.splitlines() if named in line]
    assert f" rank {rank} (host " in line and "threading.py:" in line, line
    assert "called by hvdgan/training/loop.py:" in line, line
    assert f"rank {rank}: where its threads are:" in said and " in stand_still" in said, said
    status = status_of(run_facts.read(tmp_path / "run"))
    assert status.state == "failed" and f"rank {rank} (host " in status.reason, status


@pytest.mark.long
@pytest.mark.parametrize("controller", EACH_CONTROLLER)
def test_if_no_rank_is_behind_all_show_their_stacks_and_end(tmp_path, controller):
    """If a step has begun on every rank, no rank is behind the others."""
    done, said = train(tmp_path, controller, *ENDLESS, fault=["30-1-stand_still"])
    assert done.returncode != 0, said
    assert f"no rank has made progress for {STALL_SECONDS} s" in (tmp_path / "run" / "log.txt").read_text(), said
    assert all(f"rank {rank}: where its threads are:" in said for rank in range(2)), said
    assert " in stand_still" in said, said


@pytest.mark.parametrize("controller", EACH_CONTROLLER)
def test_long_work_of_one_rank_outside_of_the_steps_is_waited_for(tmp_path, controller):
    """Longer than --stall-timeout and Horovod's own stall shutdown: in the build, in an evaluation and in a save."""
    env = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "2", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "4"}
    words = "--steps 4 --checkpoint-every 2 --eval-every 4 --holdout 0.05".split()
    done, said = train(tmp_path, controller, *words, fault=["build-0-work", "save-0-work", "evaluation-1-work"], **env)
    assert done.returncode == 0 and "Stalled ranks" not in said, said
    assert "done: 4 steps" in (tmp_path / "run" / "log.txt").read_text()


# Each rank reduces three times; then rank 1 waits for a signal that nobody sends.
SLEEPS = """
import signal
import horovod.tensorflow as hvd
import tensorflow as tf
hvd.init()
for step in range(3):
    hvd.allreduce(tf.ones(4), name="all")
if hvd.rank() == 1:
    signal.pause()
hvd.allreduce(tf.ones(4), name="all")
"""
SHORT = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "3", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "6"}


@pytest.mark.parametrize("controller", EACH_CONTROLLER)
def test_a_rank_that_takes_no_part_in_a_collective_is_named_and_ends_the_run(controller, tmp_path):
    """Over Gloo this needs the Horovod that launch/setup.sh builds (launch/patches)."""
    done = run([*launcher(2, controller), sys.executable, "-c", SLEEPS], tmp_path, forked=True, **SHORT)
    said = done.stdout + done.stderr
    assert done.returncode != 0, said
    assert re.search(r"Missing ranks:\n.*\b1!: \[", said), said
    assert "stalled for longer than 6 seconds. Will shutdown." in said


@pytest.mark.long
@pytest.mark.parametrize(
    ("rank", "seconds", "limits"),
    [(0, 100, []), *((1, seconds, ["--peer-timeout", "6", "--stall-timeout", "4"]) for seconds in (3, 40))],
)
def test_a_call_that_holds_the_gil_counts_as_frozen_after_the_peer_timeout(tmp_path, rank, seconds, limits):
    """No thread of Python can send a heartbeat meanwhile. By default it may hold the GIL for 100 s."""
    fault, more = [f"batch-{rank}-hold"], {"HVDGAN_WORK_SECONDS": str(seconds)}
    done, said = train(tmp_path, "gloo", *FEW, fault=fault, limits=limits, **more)
    assert (done.returncode == 0) == (seconds != 40), said
    assert ("has been silent for 6 s: it is dead, frozen or cut off" in said) == (seconds == 40)
