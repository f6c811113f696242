"""A rank that is killed or frozen in the middle of training ends the whole job, under each controller."""

import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from hvdgan.cli.files.lock import held_by
from hvdgan.pages.reading import run_folder
from hvdgan.pages.verdict import judge
from launching import EACH_CONTROLLER, SECONDS, launcher, started, wait_until

FLAGS = "--recipe tiny:Tiny --image-size 8 --global-batch-size 16 --steps 1000000 --log-every 10 --peer-timeout 5"
# 5 s of silence, and what a launcher takes to end the rest; the machine may be busy.
BOUND = 60


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
    what = "ended without reporting an error" if signal_number == signal.SIGKILL else "been silent for 5 s"
    assert f"{named}{what}" in said.read_text()
    if rank == "1":
        assert f"{named}{what}" in (run_dir / "log.txt").read_text()
        # A process that ends keeps its lock for a moment.
        wait_until(lambda: not held_by(run_dir), BOUND, said.read_text)
        verdict = judge(run_folder.read(run_dir))
        assert f"{named}{what}" in verdict.reason and "lost a rank once" in verdict.history
