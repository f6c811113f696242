"""The verdict on a run, from logs of every ending.

Modules: pages.reading.journal, pages.reading.run_folder.
"""

import pytest

import run_folders
from hvdgan.cli.files.lock import lock
from hvdgan.pages.reading import run_folder
from hvdgan.pages.verdict import judge
from run_folders import LAUNCH, record

CONFIG = '{"recipe": "dcgan", "max_steps": 100}'
DATE = "2026-11-25 10:30:00 "
SAVED = DATE + "stopped after step 40 of 100 (rank 0: SIGUSR1) and saved; the same command resumes the run\n"
ENDINGS = {
    "finished": (DATE + "done: 100 steps; samples in runs/dcgan/samples\n", 100, "finished", "Finished at step 100"),
    "asked to stop": (SAVED, 40, "stopped", "Stopped at step 40 of 100, and saved"),
    "an error": (
        DATE + "stopped: the disk is full\n",
        40,
        "failed",
        "Failed after step 40 of 100; there is no checkpoint that can be read",
    ),
    "killed": ("", 40, "failed", "Failed after step 40 of 100; there is no checkpoint that can be read"),
    "resumed and killed": (
        SAVED + LAUNCH,
        60,
        "failed",
        "Failed after step 60 of 100; there is no checkpoint that can be read",
    ),
}


def judged(folder, log, step):
    run_folders.write(folder, metrics=record(step, loss=1.0), log=log, config=CONFIG)
    return judge(run_folder.read(folder, verify=False))


@pytest.mark.parametrize("name", ENDINGS)
def test_each_ending_is_recognised(tmp_path, name):
    ending, step, state, sentence = ENDINGS[name]
    verdict = judged(tmp_path, LAUNCH + ending, step)
    assert (verdict.state, verdict.sentence) == (state, sentence)
    assert bool(verdict.resume) == (state != "finished")


def test_the_reason_is_that_of_the_log(tmp_path):
    verdict = judged(tmp_path, LAUNCH + DATE + "stopped: the disk is full\n", 40)
    assert verdict.reason == "the disk is full"


def test_a_run_whose_lock_is_held_is_running(tmp_path):
    with lock(tmp_path):
        verdict = judged(tmp_path, LAUNCH + SAVED + LAUNCH, 60)
        assert verdict.state == "running" and "pid" in verdict.reason and not verdict.resume
    assert judged(tmp_path, LAUNCH + SAVED + LAUNCH, 60).state == "failed"


def test_the_command_names_the_launcher_and_its_ranks_and_quotes_the_path(tmp_path):
    folder = tmp_path / "my run; rm"
    verdict = judged(folder, LAUNCH + SAVED, 40)
    assert (
        verdict.resume
        == f"horovodrun -np 2 python -m hvdgan.train --config '{folder}/config.json' --run-dir '{folder}'"
    )


def test_the_history_counts_what_has_happened(tmp_path):
    resumed = LAUNCH.replace("a new run, which ends at step 10;", "resuming at step 40 of 100;")
    bad = (
        DATE
        + "warning: step 55, stage both, update judge: loss or gradients are not finite; every rank skips the update\n"
    )
    lost = (
        DATE
        + "rank 1 (host a, pid 7) is dead; this run ends here, and --resume auto resumes it from the last checkpoint\n"
    )
    verdict = judged(tmp_path, LAUNCH + SAVED + resumed + lost + resumed + bad * 3, 60)
    assert verdict.history == [
        "resumed from a checkpoint twice",
        "asked to stop by a signal, a stop file or its time budget, as before a requeue once",
        "lost a rank once",
        "skipped a non-finite update 3 times",
    ]
