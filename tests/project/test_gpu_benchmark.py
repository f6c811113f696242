"""benchmarks/gpu.sh on the CPU: all parts run, whatever fails in one; results and page say what was found."""

import dataclasses
import json
import re
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

from launching import ROOT, environment, run

sys.path.insert(0, str(ROOT / "benchmarks"))
import gpu.__main__ as script
import processes
from gpu import parts, setting
from gpu.setting import Check

SCRIPT = ROOT / "benchmarks" / "gpu.sh"


def results(folder):
    """The checks of a folder of results."""
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()[1:]]


@pytest.mark.long
@pytest.mark.timeout(2000)
def test_all_parts_run_on_the_cpu(tmp_path):
    words = "--cpu --quick --recipe dcgan,completion,calo3d --precision float32 --out out".split()
    done = run([SCRIPT, *words], tmp_path, seconds=1900)
    assert done.returncode == 0, done.stdout + done.stderr
    found = results(tmp_path / "out")
    assert list(dict.fromkeys(each["part"] for each in found)) == list(parts.PARTS)
    verdicts = {each["name"]: each["verdict"] for each in found}
    assert set(verdicts.values()) == {"passed"}
    assert {"dcgan: one rank and the CPU", "dcgan: 2 ranks and one", "float32 by XLA", "tests/gpu"} <= verdicts.keys()
    (trained,) = [each["found"] for each in found if each["name"] == "completion, float32"]
    assert trained.count(" images/s (") == 3 and trained.endswith(" GB")
    text = (tmp_path / "out" / "page.md").read_text()
    assert "This ran on the CPU, and says nothing about GPUs" in text
    assert "of independent copies" in text and "| hvdgan | keras |" in text and "all-reduce" in text


@pytest.fixture
def given(tmp_path):
    """Settings without a limit of time."""
    return setting.Setting(
        out=tmp_path,
        cpu=True,
        quick=True,
        here=2,
        nodes=1,
        recipes=("dcgan",),
        precisions=("float32",),
        timeout=60.0,
        deadline=float("inf"),
    )


def fine(given):
    yield Check("fine", "passed")


def test_a_part_that_breaks_does_not_stop_the_later_ones(given, monkeypatch):
    def breaks(given):
        yield Check("first", "passed")
        raise OSError("the disk of <this> host")

    monkeypatch.setattr(script, "PARTS", {"breaks": breaks, "later": fine})
    assert script.run(given, ["breaks", "later"]) == 1
    assert [(each["part"], each["verdict"]) for each in results(given.out)] == [
        ("breaks", "passed"),
        ("breaks", "failed"),
        ("later", "passed"),
    ]
    text = (given.out / "page.md").read_text()
    assert "1 of 3 checks failed" in text and "OSError: the disk of <this> host" in text


def test_without_a_build_that_works_nothing_else_is_run(given, monkeypatch):
    monkeypatch.setattr(script, "PARTS", {"build": lambda given: iter([Check("doctor", "failed")]), "later": fine})
    assert script.run(given, ["build", "later"]) == 1
    assert [each["part"] for each in results(given.out)] == ["build"]


def test_what_the_time_budget_leaves_out_is_named_and_no_failure(given, monkeypatch):
    def work(given):
        yield Check("quick", "passed")
        given.run("last", ["true"])
        yield Check("never", "passed")

    monkeypatch.setattr(script, "PARTS", {"work": work})
    assert script.run(dataclasses.replace(given, deadline=0.0), ["work"]) == 0
    assert [each["name"] for each in results(given.out)] == ["quick", "from last on"]
    assert "0 of 1 checks failed, 1 did not run" in (given.out / "page.md").read_text()


def test_the_end_of_a_job_ends_the_running_command(tmp_path):
    """Slurm sends SIGTERM; what was done is there."""
    words = [SCRIPT, *"--cpu --quick --only demo --out out".split()]
    process = subprocess.Popen(words, cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while not (tmp_path / "out" / "logs" / "demo.txt").exists() and time.monotonic() < until:
        time.sleep(0.1)
    below = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 130 and below
    assert not psutil.wait_procs(below, timeout=10)[1]
    assert (tmp_path / "out" / "results.jsonl").read_text().startswith('{"machine"')


def test_without_a_gpu_it_says_so(tmp_path):
    done = run([SCRIPT], tmp_path, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2 and "there is no GPU here" in done.stderr and list(tmp_path.iterdir()) == []


def test_a_python_that_lacks_what_it_needs_is_one_line(tmp_path):
    """Neither make nor pip is called, and .venv is not used in place of the active environment."""
    bare = tmp_path / "bare" / "bin"
    bare.mkdir(parents=True)
    (bare / "python").write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    (bare / "python").chmod(0o755)
    done = run([SCRIPT, "--cpu"], tmp_path, PATH=f"{bare}:/usr/bin:/bin", VIRTUAL_ENV=str(bare.parent))
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"benchmarks/gpu.sh: {bare}/python: ModuleNotFoundError: No module named ")


def test_the_help_is_the_comment_of_the_script(tmp_path):
    done = run([SCRIPT, "--cpu", "--help"], tmp_path)
    assert done.returncode == 0 and done.stdout.startswith("usage: benchmarks/gpu.sh [--out DIR]")
    flags = set(re.findall(r"^  (--[a-z-]+)", done.stdout, re.MULTILINE)) - {"--help"}
    assert flags == {flag for action in script.arguments()._actions for flag in action.option_strings}
    assert " ".join(done.stdout.split()).count(", ".join(parts.PARTS)) == 1


def test_ranks_start_by_the_launcher_and_in_slurm_by_srun(no_launcher, tmp_path):
    one, two = (setting.launcher(count, 2, "hvdgan.train") for count in (1, 2))
    assert one == [sys.executable, "-m", "hvdgan.train"]
    launch = [sys.executable, "-m", "hvdgan.launch"]
    assert two == [*launch, "-np", "2", "-m", "hvdgan.train", "--"]
    (tmp_path / "srun").write_text("#!/bin/sh\n")
    (tmp_path / "srun").chmod(0o755)
    no_launcher.setenv("PATH", str(tmp_path), prepend=":")
    no_launcher.setenv("SLURM_JOB_ID", "7")
    no_launcher.setenv("SLURM_JOB_CPUS_PER_NODE", "32(x2)")
    by_srun = " ".join(setting.launcher(8, 2, "hvdgan.train"))
    assert by_srun.startswith("srun --mpi=pmix --kill-on-bad-exit=1 --nodes=2 --ntasks=8 --cpus-per-task=8 ")
    no_launcher.setenv("LAUNCHER", "gloo")
    assert setting.launcher(8, 2, "m") == [*launch, "--gloo", "-np", "8", "-m", "m", "--"]


def test_a_command_is_ended_at_its_time_limit_with_its_children(tmp_path):
    words = ["bash", "-c", "echo NCCL WARN no link; sleep 1000 & echo $! >child; wait"]
    done = processes.run(words, tmp_path / "logs" / "a.txt", 1.0, tmp_path, {})
    assert done.code is None and done.errors[0] == "NCCL WARN no link" and "time limit" in done.errors[-1]
    assert not psutil.pid_exists(int((tmp_path / "child").read_text()))


def test_weights_are_compared_by_network_and_not_a_number_is_no_equality(monkeypatch, tmp_path):
    """A bias that is nearly zero may differ by all of itself after another rounding."""
    same = {"ema/a/kernel": np.ones(4), "networks/a/kernel": np.ones((10, 10))}
    biases = {"one": 1e-4, "other": 0.0, "lost": np.nan}
    runs = {tmp_path / name: {**same, "networks/a/bias": np.array([bias])} for name, bias in biases.items()}
    one, other, lost = runs
    for run_dir in runs:
        run_dir.mkdir()
        (run_dir / "metrics.jsonl").write_text('{"images_per_sec": 1.0, "a/loss": 1.0, "b/loss": 2.0}\n')
    monkeypatch.setattr(parts, "find", lambda run_dir: run_dir)
    monkeypatch.setattr(parts, "read_tensors", lambda run_dir, only: runs[run_dir].items())
    assert parts.distances(one, other) == {"weights": pytest.approx(1e-5), "losses": 0.0}
    assert np.isnan(parts.distances(one, lost)["weights"])
    del runs[other]["networks/a/bias"]
    assert parts.distances(one, other)["weights"] == float("inf")


def test_losses_that_are_not_finite_and_stages_without_any_are_complaints():
    whole = {"step": 4, "stage": "a", "d/loss": 1.0, "g/loss": 2.0}
    assert parts.complaint_of([whole]) == ""
    assert parts.complaint_of([{**whole, "g/loss": None}]) == "step 4: g/loss is not finite"
    assert parts.complaint_of([whole, {"step": 8, "stage": "b"}]) == "stage b: every update was skipped"
    assert parts.complaint_of([]) == "there are no metrics"


@pytest.mark.parametrize("recipe", script.RECIPES)
def test_every_recipe_takes_its_flags(recipe):
    from hvdgan.recipe.loading import known_recipes
    from hvdgan.training.command import parse

    assert known_recipes() == script.RECIPES
    words = f"{parts.STAGES.get(recipe, '--steps {0}')} {parts.SMALL.get(recipe, '--nf 2')}".format(20)
    assert parse(["--recipe", recipe, *words.split()]) is not None
