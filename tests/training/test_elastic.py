"""Elastic runs, on two names of this machine, train what a plain run trains, while ranks are lost and come back.
Modules: training.elastic, training.observations"""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import psutil
import pytest

from hvdgan.train import main
from launching import environment
from saved import records, tensors

# Two ranks cannot share this batch evenly.
FLAGS = "--recipe failing:Failing --norm none --image-size 8 --global-batch-size 5 --log-every 1".split()
FLAGS += "--sample-every 0 --checkpoint-every 100 --commit-every 5 --peer-timeout 5 --report never".split()
# Longer than horovodrun takes to look for hosts, also on a busy machine: with 1 s it may count a lost host in without
# starting it (docs/elastic.md).
COOLDOWN = "--cooldown 5,5".split()
SECONDS = 500


def elastic(folder: Path, *words: str, faults: Sequence[str]) -> tuple[int, str]:
    """Train by hvdgan launch on two hosts to the end; its exit code and all its output."""
    (folder / "hosts").write_text("localhost slots=1\n127.0.0.1:1  # the same machine\n")
    (folder / "faults").mkdir(exist_ok=True)
    for fault in faults:
        (folder / "faults" / fault).touch()
    command = [sys.executable, *"-m hvdgan.launch --elastic --interface lo --hostfile hosts".split(), *COOLDOWN]
    process = subprocess.Popen(
        [*command, *"-np 2 --min-np 1".split(), *FLAGS, *words, "--run-dir", "run"],
        cwd=folder,
        env=environment(HVDGAN_FAULTS=str(folder / "faults")),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=SECONDS)
        return process.returncode, said
    except subprocess.TimeoutExpired:
        below = psutil.Process(process.pid).children(recursive=True)
        for each in [*below, process]:
            each.kill()
        raise AssertionError(f"it did not end in {SECONDS} s\n{process.communicate()[0]}") from None


def assert_same_samples(run_dir: Path, other: Path, steps: int) -> None:
    """Every step is there once, on the same samples, with the same rates, up to the order of sums."""
    pairs = list(zip(records(run_dir), records(other), strict=True))
    assert [ours["step"] for ours, _ in pairs] == list(range(1, steps + 1))
    for ours, theirs in pairs:
        for name in ("judge/pixels", "judge/latents"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-4, abs=1e-6), (ours["step"], name)
        for name in ("judge/loss", "fool/loss"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-3), (ours["step"], name)
    ours, theirs = tensors(run_dir, steps), tensors(other, steps)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        np.testing.assert_allclose(value, theirs[name], rtol=1e-3, atol=1e-3, err_msg=name)


BOTH = pytest.param(["40-1-kill", "120-0-freeze"], marks=pytest.mark.long)


@pytest.mark.parametrize("faults", [["40-1-kill"], BOTH])
def test_a_lost_rank_and_a_frozen_one_change_nothing_and_a_plain_run_continues(tmp_path, faults):
    """On float arrays, whose map needs statistics that all ranks compute at each of their starts."""
    fields = np.random.default_rng(0).gamma(2.0, 3.0, (300, 8, 8, 1))
    np.save(tmp_path / "fields.npy", fields.astype(np.float32))
    data = ["--data", str(tmp_path / "fields.npy"), "--values", "log1p+standard"]
    code, said = elastic(tmp_path, *data, "--steps", "400", faults=faults)
    assert code == 0, said
    assert not list((tmp_path / "faults").iterdir()), said
    assert "Traceback" not in said
    log = (tmp_path / "run" / "log.txt").read_text()
    went_on = [(int(ranks), int(step)) for ranks, step in re.findall(r"(\d) rank\(s\) resume at step (\d+) of", log)]
    assert [ranks for ranks, _ in went_on] == [1, 2] * len(faults), said
    struck = [int(step) for step in re.findall(r"(?:kill|freeze) at (\d+)", said)]
    for at, (_, step) in zip(struck, went_on[::2], strict=True):
        assert at - 5 < step <= at
    alone = tmp_path / "alone"
    assert main([*FLAGS, *data, "--steps", "400", "--run-dir", str(alone)]) == 0
    assert_same_samples(tmp_path / "run", alone, 400)
    for folder in (tmp_path / "run", alone):
        assert main([*FLAGS, *data, "--steps", "410", "--run-dir", str(folder)]) == 0
    assert_same_samples(tmp_path / "run", alone, 410)


@pytest.mark.long
def test_an_error_that_is_no_lost_rank_ends_the_run(tmp_path):
    code, said = elastic(tmp_path, "--steps", "150", faults=["20-1-bug"])
    assert code in (1, 2), said  # of the rank that ended first: the one with the bug, or one that has heard of it
    # Rank 0 says so in its own words or, where it hears of the other's failure first, in those of its heartbeats.
    ended = "stopped: " in said or "this run ends here" in said
    assert "ValueError: a bug of the recipe" in said and ended and "resume at step" not in said, said


@pytest.mark.parametrize("flags", [["--expect-size", "2"], ["--peer-timeout", "0"]])
def test_flags_that_have_no_meaning_in_an_elastic_run_are_refused(tmp_path, monkeypatch, capsys, flags):
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    assert main(["--recipe", "tiny:Tiny", "--run-dir", str(tmp_path / "run"), *flags]) == 2
    assert " ".join(flags) in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
