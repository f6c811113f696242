"""How a run stands, on every ending, and what a page takes from the start that a real run has written.
Modules: pages.run_facts, runs.events"""

import os

import pytest

import run_folders
from hvdgan import report
from hvdgan.files.lock import lock
from hvdgan.pages import run_facts
from hvdgan.pages.run_status import status_of
from hvdgan.runs import events
from hvdgan.runs.events import End, LostRank, NetworkFacts, Recovery, SkippedUpdate, StageFacts, UpdateFacts
from hvdgan.runs.folder import Folder
from hvdgan.train import main
from run_folders import record, started

START = started(0, 100)
SAVED = End(state="stopped", text="stopped after step 40 of 100 (rank 0: SIGUSR1) and saved", is_saved=True)
FULL = End(state="failed", text="the disk is full")
LOST = LostRank(rank=1, host="n", pid=7, text="rank 1 (host n, pid 7) is lost")
KEPT = "the newest checkpoint is of step"
SAME, ANEW = "The same command resumes it:", "Nothing is saved here: the same command begins it anew:"


def status(folder, *told, step, is_saved=True):
    run_folders.write(folder, metrics=record(step, loss=1.0), told=told, config='{"recipe": "dcgan"}')
    if is_saved:
        run_folders.checkpoint(folder, step)
    return status_of(run_facts.read(folder))


@pytest.mark.parametrize(
    ("told", "step", "state", "sentence"),
    [
        ([End(state="finished", text="done: 100 steps")], 100, "finished", "Finished at step 100"),
        ([SAVED], 40, "stopped", "Stopped at step 40 of 100, and saved"),
        ([FULL], 40, "failed", f"Failed after step 40 of 100; {KEPT} 40"),
        ([], 40, "failed", f"Failed after step 40 of 100; {KEPT} 40"),
        ([SAVED, START], 60, "failed", f"Failed after step 60 of 100; {KEPT} 60"),
    ],
    ids=["finished", "asked to stop", "an error", "killed", "resumed and killed"],
)
def test_each_ending_is_recognised(tmp_path, told, step, state, sentence):
    found = status(tmp_path, START, *told, step=step)
    assert (found.state, found.sentence, found.resume) == (state, sentence, "" if state == "finished" else SAME)
    (tmp_path / ".lock").write_text("host elsewhere, pid 7\n")
    why = "its last process was on another host, this folder is a copy, or its file system has no locks"
    unknown = f"State unknown at step {step} of 100: {why}"
    assert status_of(run_facts.read(tmp_path)).sentence == (sentence if told[-1:] not in ([], [START]) else unknown)


def test_where_nothing_is_saved_it_says_so(tmp_path):
    found = status(tmp_path, START, FULL, step=40, is_saved=False)
    assert (found.sentence, found.resume) == ("Failed after step 40 of 100; there is no checkpoint", ANEW)
    assert report.main([str(tmp_path)]) == 0 and ANEW in (tmp_path / "report.html").read_text()
    run_folders.checkpoint(tmp_path, 40).write_bytes(b"")
    found = status_of(run_facts.read(tmp_path))
    assert "No checkpoint is whole" in found.resume and found.sentence.endswith("no checkpoint is whole")
    run_folders.checkpoint(tmp_path, 20)
    assert status_of(run_facts.read(tmp_path)).resume == SAME


def test_a_run_whose_lock_is_held_is_running_for_the_time_of_steady_steps_and_the_work_between(tmp_path):
    """The first record holds the time of tracing."""
    times = [(60.0, 5.0), (0.5, 0.1), (0.5, 0.1)]
    lines = [record(n, step_seconds=a, between_seconds=b) for n, (a, b) in enumerate(times, 1)]
    run_folders.write(tmp_path, metrics="".join(lines), told=[START, SAVED, started(0, 36_003)])
    with lock(tmp_path):
        found = status_of(run_facts.read(tmp_path))
    assert found.sentence == "Running at step 3 of 36,003, about 6 hours left"
    assert f"pid {os.getpid()}" in found.reason and not found.resume
    assert status_of(run_facts.read(tmp_path)).state == "unknown", "the process that the lock names is alive"
    (tmp_path / ".lock").write_text(f"host {os.uname().nodename}, pid 4194305\n")  # no pid is as large
    assert status_of(run_facts.read(tmp_path)).state == "failed"


def test_the_reason_is_in_the_events_and_the_history_counts_what_has_happened(tmp_path):
    bad = [SkippedUpdate(step=55, stage="both", update="judge", times=times) for times in (1, 2, 3)]
    resumed = started(40, 100)
    found = status(tmp_path / "killed", START, SAVED, resumed, LOST, resumed, *bad, step=60)
    assert found.history == [
        "resumed from a checkpoint twice",
        "asked to stop once",
        "lost a rank once",
        "skipped a non-finite update 3 times",
    ]
    assert "has ended without a word in events.jsonl" in found.reason
    end = End(state="failed", text=f"{LOST.text}; this run ends here", is_of_lost_rank=True)
    found = status(tmp_path / "lost", START, LOST, LOST, end, step=60)
    assert (found.state, found.reason, found.history) == ("failed", end.text, ["lost a rank once"])
    recovery = Recovery(ranks=1, step=50, last_step=100)
    found = status(tmp_path / "elastic", START, LOST, recovery, step=60)
    assert found.history == ["resumed from memory with other ranks once", "lost a rank once"]
    assert "without a word" in found.reason, "the run has continued without the rank that it lost"


UPDATES = {"judge": "discriminator", "fool": "generator"}
FLAGS = "--recipe tiny:Staged --image-size 8 --global-batch-size 8 --steps 3 --log-every 1".split()


def test_a_start_is_read_as_it_is_written(tmp_path, monkeypatch):
    words = [*FLAGS, "--run-dir", str(tmp_path / "my run")]
    monkeypatch.setattr("sys.argv", ["/somewhere/hvdgan/train.py", *words])
    assert main([*words, "--max-steps", "4"]) == main(words) == 0
    journal = events.read(Folder(tmp_path / "my run"))
    start = journal.start
    assert start.command == f"hvdgan train {' '.join(FLAGS)} --run-dir '{tmp_path}/my run'"
    assert (journal.restarts, journal.end.state, journal.last_step) == ([4], "finished", 9)
    assert (start.ranks, start.launcher, start.step) == (1, "none", 4)
    generator = NetworkFacts(name="generator", trainable=8 * 16 + 16 + 16 * 64 + 64, other=0, is_frozen=False)
    assert start.networks[0] == generator and start.networks[1].name == "discriminator"
    judge, fool = (UpdateFacts(name=name, owns=[own], every=1, bytes=0) for name, own in UPDATES.items())
    stages = {"generator": [fool], "discriminator": [judge], "joint": [judge, fool]}
    assert start.stages == [StageFacts(name=name, steps=3, updates=updates) for name, updates in stages.items()]
    assert start.data == ["digits, 1,797 pictures of shape (8, 8, 1) in 10 classes"]
    assert start.machine[0].startswith("hvdgan ") and any("CPU" in line for line in start.machine)
    assert "--recipe=tiny:Staged" in start.changed and not any("--norm" in line for line in start.changed)
