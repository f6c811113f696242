"""What a page takes from the events of a run, and its verdict on every ending.
Modules: runs.journal, pages.run_facts, runs.events"""

import os

import pytest

import run_folders
from hvdgan import report
from hvdgan.distributed.liveness.lost_ranks import ENDED, FAILED, STANDING
from hvdgan.files.lock import lock
from hvdgan.pages import run_facts
from hvdgan.pages.verdict import judge
from hvdgan.runs.events import End, LostRank, Network, Recovery, SkippedUpdate, Stage, Update
from hvdgan.runs.journal import read
from hvdgan.runs.lines import Folder
from hvdgan.train import main
from monitors import group_of
from run_folders import record, started

CONFIG = '{"recipe": "dcgan"}'
START = started(0, 100)
GROUP = group_of(4, 5.0)
RECOVERY = Recovery(ranks=1, step=50, last_step=100)
SAVED = End(state="stopped", text="stopped after step 40 of 100 (rank 0: SIGUSR1) and saved", is_saved=True)
FULL = End(state="failed", text="the disk is full")
KEPT = "the newest checkpoint is of step"
DEAD = f"host {os.uname().nodename}, pid 4194305\n"
"""a lock file of a process that is gone: no pid is as large"""
ENDINGS = {
    "finished": ([End(state="finished", text="done: 100 steps")], 100, "finished", "Finished at step 100"),
    "asked to stop": ([SAVED], 40, "stopped", "Stopped at step 40 of 100, and saved"),
    "an error": ([FULL], 40, "failed", f"Failed after step 40 of 100; {KEPT} 40"),
    "killed": ([], 40, "failed", f"Failed after step 40 of 100; {KEPT} 40"),
    "resumed and killed": ([SAVED, START], 60, "failed", f"Failed after step 60 of 100; {KEPT} 60"),
}


def lost(rank, kind=ENDED):
    """The event of a lost rank."""
    pid = GROUP.processes[rank][0]
    return LostRank(rank=rank, host=GROUP.hosts[rank], pid=pid, text=GROUP.describe(rank, kind))


def ended(rank, kind=ENDED):
    """The end of a run by a lost rank."""
    last = f"{GROUP.describe(rank, kind)}; this run ends here, and --resume auto resumes it"
    return [lost(rank, kind), End(state="failed", text=last, is_of_lost_rank=True)]


def judged(folder, told, step, *, is_saved=True):
    run_folders.write(folder, metrics=record(step, loss=1.0), told=told, config=CONFIG)
    if is_saved:
        run_folders.checkpoint(folder, step)
    return judge(run_facts.read(folder))


@pytest.mark.parametrize("name", ENDINGS)
def test_each_ending_is_recognised(tmp_path, name):
    ending, step, state, sentence = ENDINGS[name]
    verdict = judged(tmp_path, [START, *ending], step)
    assert (verdict.state, verdict.sentence) == (state, sentence)
    assert verdict.resume == ("" if state == "finished" else "The same command resumes it:")


def test_where_nothing_is_saved_it_says_so(tmp_path):
    ending, step, state, sentence = ENDINGS["an error"]
    verdict = judged(tmp_path, [START, *ending], step, is_saved=False)
    begin = sentence.partition(", and saved")[0].partition(";")[0]
    assert (verdict.state, verdict.sentence) == (state, f"{begin}; there is no checkpoint")
    assert verdict.resume == "Nothing is saved here: the same command begins it anew:"
    assert report.main([str(tmp_path)]) == 0 and verdict.resume in (tmp_path / "report.html").read_text()
    run_folders.checkpoint(tmp_path, step).write_bytes(b"")
    verdict = judged(tmp_path, [START, *ending], step, is_saved=False)
    assert "No checkpoint is whole" in verdict.resume and verdict.sentence.endswith("no checkpoint is whole")
    run_folders.checkpoint(tmp_path, 20)
    assert judge(run_facts.read(tmp_path)).resume == "The same command resumes it:"


def test_a_run_whose_lock_is_held_is_running(tmp_path):
    with lock(tmp_path):
        verdict = judged(tmp_path, [START, SAVED, START], 60)
        assert verdict.state == "running" and "pid" in verdict.reason and not verdict.resume
    (tmp_path / ".lock").write_text(DEAD)
    assert judged(tmp_path, [START, SAVED, START], 60).state == "failed"


def test_the_time_that_is_left_is_that_of_steady_steps_and_the_work_between(tmp_path):
    """The first record holds the time of tracing."""
    times = [(60.0, 5.0), (0.5, 0.1), (0.5, 0.1)]
    lines = [record(n, step_seconds=a, between_seconds=b) for n, (a, b) in enumerate(times, 1)]
    run_folders.write(tmp_path, metrics="".join(lines), told=[started(0, 36_003)])
    with lock(tmp_path):
        sentence = judge(run_facts.read(tmp_path)).sentence
    assert sentence == "Running at step 3 of 36,003, about 6 hours left"


def test_the_history_counts_what_has_happened(tmp_path):
    bad = [SkippedUpdate(step=55, stage="both", update="judge", times=times) for times in (1, 2, 3)]
    resumed = started(40, 100)
    verdict = judged(tmp_path, [START, SAVED, resumed, lost(1), resumed, *bad], 60)
    assert verdict.history == [
        "resumed from a checkpoint twice",
        "asked to stop once",
        "lost a rank once",
        "skipped a non-finite update 3 times",
    ]


@pytest.mark.parametrize("kind", [FAILED, STANDING])
def test_a_lost_rank_is_the_reason_and_counts_once(tmp_path, kind):
    told = ended(1, kind)
    verdict = judged(tmp_path, [START, told[0], *told], 60)
    assert (verdict.state, verdict.reason, verdict.history) == ("failed", told[-1].text, ["lost a rank once"])
    failure = f"a collective has failed: Horovod has been shut down; {told[0].text}"
    verdict = judged(tmp_path, [START, told[0], End(state="failed", text=failure)], 60)
    assert verdict.reason == failure and verdict.history == ["lost a rank once"]


def test_an_elastic_run_counts_each_lost_rank_and_is_not_ended_by_those_that_it_continued_without(tmp_path):
    verdict = judged(tmp_path, [START, lost(1), RECOVERY, lost(2), RECOVERY], 60)
    assert verdict.history == ["resumed from memory with other ranks twice", "lost a rank twice"]
    assert "without a word" in verdict.reason


UPDATES = {"judge": "discriminator", "fool": "generator"}
FLAGS = "--recipe tiny:Staged --image-size 8 --global-batch-size 8 --steps 3 --log-every 1".split()


def test_a_start_is_read_as_it_is_written(tmp_path, monkeypatch):
    words = [*FLAGS, "--run-dir", str(tmp_path / "my run")]
    monkeypatch.setattr("sys.argv", ["/somewhere/hvdgan/train.py", *words])
    assert main([*words, "--max-steps", "4"]) == 0
    assert main(words) == 0
    journal = read(Folder(tmp_path / "my run"))
    start = journal.start
    assert start.command == f"python -m hvdgan.train {' '.join(FLAGS)} --run-dir '{tmp_path}/my run'"
    assert (journal.restarts, journal.end.state, journal.last_step) == ([4], "finished", 9)
    assert (start.ranks, start.launcher, start.step) == (1, "none", 4)
    generator = Network(name="generator", trainable=8 * 16 + 16 + 16 * 64 + 64, other=0, is_frozen=False)
    assert start.networks[0] == generator and start.networks[1].name == "discriminator"
    judge, fool = (Update(name=name, owns=[own], every=1, bytes=0) for name, own in UPDATES.items())
    assert start.stages == [
        Stage(name="generator", steps=3, updates=[fool]),
        Stage(name="discriminator", steps=3, updates=[judge]),
        Stage(name="joint", steps=3, updates=[judge, fool]),
    ]
    assert start.data == ["digits, 1,797 pictures of shape (8, 8, 1) in 10 classes"]
    assert start.machine[0].startswith("hvdgan ") and any("CPU" in line for line in start.machine)
    assert "--recipe tiny:Staged" in start.changed and not any("--norm" in line for line in start.changed)
