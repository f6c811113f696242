"""A rank that slows down all others is named, with what it is slow in."""

import json
import os
import signal
import sys
import time

import pytest
from test_dead_ranks import of_run, steps

from hvdgan.pages.reading import run_folder
from hvdgan.pages.verdict import judge
from launching import EACH_CONTROLLER, SECONDS, launcher, started, train, wait_until

FLAGS = "--image-size 8 --global-batch-size 24 --report never --run-dir".split()


def named(run_dir):
    """The ranks that were named as slow, each with the part of its steps that is slow."""
    lines = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    assert all(each["host"] == os.uname().nodename for each in lines if each["event"] == "slow_rank")
    return {(each["rank"], each["part"]) for each in lines if each["event"] == "slow_rank" and each["ratio"] > 1.2}


def test_a_rank_with_a_slow_disk_is_named(tmp_path):
    words = "--recipe tiny:Tiny --data paced:SlowDisk --steps 24 --log-every 4".split()
    train(tmp_path, *FLAGS, "run", *words, ranks=3, HVDGAN_SLOW_RANK="1")
    assert (1, "wait_seconds") in named(tmp_path / "run")
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["slowest_rank"] == 1 and last["wait_seconds_max"] > 2 * last["wait_seconds_median"]
    assert "rank 1 on " in (tmp_path / "run" / "log.txt").read_text()
    assert "warned once" in judge(run_folder.read(tmp_path / "run")).history


@pytest.mark.parametrize("controller", EACH_CONTROLLER)
def test_a_rank_that_gets_the_processor_half_of_the_time_is_named(tmp_path, controller):
    run_dir, said = tmp_path / "run", tmp_path / "said"
    words = [*FLAGS, run_dir, *"--recipe paced:Working --steps 1000000 --log-every 20".split()]

    def is_named():
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.1)
        os.kill(pid, signal.SIGCONT)
        return (2, "compute_seconds") in named(run_dir)

    with started([*launcher(3, controller), sys.executable, "-m", "hvdgan.train", *words], tmp_path) as process:
        wait_until(lambda: process.poll() is not None or steps(run_dir) >= 2, SECONDS, said.read_text)
        (pid,) = [pid for pid, rank in of_run(run_dir).items() if rank == "2"]
        wait_until(is_named, 60, said.read_text)
