"""A rank that is killed or frozen in the middle of training ends the whole job, under each controller.

A rank that slows down all others is named, with what it is slow in, and no other."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from hvdgan.files.lock import held_by
from hvdgan.pages import run_facts
from hvdgan.pages.run_status import status_of
from launching import EACH_CONTROLLER, SECONDS, launcher, run, started, wait_until
from saved import records

FLAGS = "--recipe tiny:Tiny --image-size 8 --global-batch-size 16 --steps 1000000 --log-every 10 --peer-timeout 10"
# 10 s of silence, and what a launcher takes to end the rest; on a busy machine a killed process may need some to end.
BOUND = 240


def of_run(run_dir: Path) -> dict[int, str | None]:
    """The processes whose command line names the run folder, launchers and shells too: pid to rank."""
    found = {}
    for process in psutil.process_iter(["cmdline", "environ"]):
        words, variables = process.info["cmdline"] or [], process.info["environ"] or {}
        if any(str(run_dir) in word for word in words):
            # A launcher's shell has no rank of its own.
            trains = words[0] == sys.executable and "hvdgan.train" in words
            rank = variables.get("HOROVOD_RANK", variables.get("OMPI_COMM_WORLD_RANK"))
            found[process.pid] = rank if trains else None
    return found


def steps(run_dir: Path) -> int:
    """The number of records that a run has logged."""
    metrics = run_dir / "metrics.jsonl"
    return metrics.read_text().count("\n") if metrics.exists() else 0


@pytest.fixture(params=EACH_CONTROLLER)
def job(request, tmp_path):
    """Two ranks that train: the launcher, the run folder, and the file of all they say."""
    run_dir, said = tmp_path / "run", tmp_path / "said"
    words = [*launcher(2, request.param), sys.executable, "-m", "hvdgan.train", *FLAGS.split(), "--run-dir", run_dir]
    with started(words, tmp_path) as process:
        wait_until(lambda: process.poll() is not None or steps(run_dir) >= 2, SECONDS, said.read_text)
        assert process.poll() is None, said.read_text()
        yield process, run_dir, said
        for pid in of_run(run_dir):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("rank", [pytest.param("0", marks=pytest.mark.long), "1"])
@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGSTOP])
def test_the_job_ends_by_name_and_leaves_nothing(job, rank, signal_number):
    """Not when all ranks are stopped and go on, as by a laptop that sleeps."""
    process, run_dir, said = job
    ranks = {of_rank: pid for pid, of_rank in of_run(run_dir).items() if of_rank}
    if signal_number == signal.SIGSTOP:
        for each in (signal.SIGSTOP, signal.SIGCONT):
            for pid in ranks.values():
                os.kill(pid, each)
            time.sleep(12 if each == signal.SIGSTOP else 0)
        before = steps(run_dir)
        wait_until(lambda: steps(run_dir) > before + 2, BOUND, said.read_text)
        assert "silent" not in said.read_text(), said.read_text()
    os.kill(ranks[rank], signal_number)
    wait_until(lambda: process.poll() is not None, BOUND, said.read_text)
    assert process.returncode != 0
    wait_until(lambda: not of_run(run_dir), BOUND, lambda: of_run(run_dir))
    named = f"rank {rank} (host {os.uname().nodename}, pid {ranks[rank]}) has "
    what = "ended without reporting an error" if signal_number == signal.SIGKILL else "been silent for 10 s"
    assert f"{named}{what}" in said.read_text()
    if rank == "1":
        assert f"{named}{what}" in (run_dir / "log.txt").read_text()
        # A process that ends keeps its lock for a moment.
        wait_until(lambda: not held_by(run_dir), BOUND, said.read_text)
        status = status_of(run_facts.read(run_dir))
        assert f"{named}{what}" in status.reason and "lost a rank once" in status.history


SLOWED = "--image-size 8 --global-batch-size 24 --report never --run-dir".split()


def named_with(run_dir, rank, part, log_every):
    """The ranks that were named as slow in the three logs in which this one was slow in this part; none until it is.

    Of three ranks one alone can be slower than the median, so that no noise of a busy machine adds another one.
    """
    lines = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    slow = [each for each in lines if each["event"] == "slow_rank"]
    assert all(each["host"] == os.uname().nodename and each["ratio"] > 1.2 for each in slow)
    ends = [each["step"] for each in slow if (each["rank"], each["part"]) == (rank, part)]
    return {each["rank"] for each in slow if any(0 <= end - each["step"] < 3 * log_every for end in ends)}


@pytest.mark.long
def test_a_rank_with_a_slow_disk_is_named(tmp_path):
    """The run stops once the rank is named: on a busy machine any rank may be slow in some logs."""
    words = "--recipe tiny:Tiny --data paced:SlowingDisk --pipeline.threads 1 --steps 1000 --log-every 2".split()
    command = [*launcher(3), sys.executable, "-m", "hvdgan.train", *SLOWED, "run", *words]
    done = run(command, tmp_path, forked=True, HVDGAN_SLOW_RANK="1")
    status = status_of(run_facts.read(tmp_path / "run"))
    assert status.state == "stopped" and "rank 1: SIGUSR2" in status.reason, done.stdout + done.stderr
    assert named_with(tmp_path / "run", 1, "wait_seconds", 2) == {1}
    waits = [each for each in records(tmp_path / "run") if each["slowest_rank"] == 1]
    assert any(each["wait_seconds_max"] > 2 * each["wait_seconds_median"] for each in waits)
    assert "rank 1 on " in (tmp_path / "run" / "log.txt").read_text()
    assert "warned once" in status.history


@pytest.mark.long
@pytest.mark.parametrize("controller", EACH_CONTROLLER)
def test_a_rank_that_gets_the_processor_half_of_the_time_is_named(tmp_path, controller):
    run_dir, said = tmp_path / "run", tmp_path / "said"
    words = [*SLOWED, run_dir, *"--recipe paced:Working --steps 1000000 --log-every 20".split()]

    def is_named():
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.1)
        os.kill(pid, signal.SIGCONT)
        return named_with(run_dir, 2, "compute_seconds", 20)

    with started([*launcher(3, controller), sys.executable, "-m", "hvdgan.train", *words], tmp_path) as process:
        wait_until(lambda: process.poll() is not None or steps(run_dir) >= 2, SECONDS, said.read_text)
        (pid,) = [pid for pid, rank in of_run(run_dir).items() if rank == "2"]
        wait_until(is_named, SECONDS, said.read_text)
        assert named_with(run_dir, 2, "compute_seconds", 20) == {2}
