"""benchmarks/gpu.sh on the CPU: all parts run, whatever fails in one; results and page say what was found."""

import json
import signal
import subprocess
import sys
import time

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


def test_a_command_is_ended_at_its_time_limit_with_its_children(tmp_path):
    words = ["bash", "-c", "echo NCCL WARN no link; sleep 1000 & echo $! >child; wait"]
    done = processes.run(words, tmp_path / "logs" / "a.txt", 1.0, tmp_path, {})
    assert done.code is None and done.errors[0] == "NCCL WARN no link" and "time limit" in done.errors[-1]
    assert not psutil.pid_exists(int((tmp_path / "child").read_text()))


@pytest.mark.long
def test_pytest_gets_no_other_folder_and_grows_on_gpus(tmp_path, monkeypatch):
    """Without a GPU each test is skipped by name, and that is no success."""
    text = "import os\n\n\ndef pytest_unconfigure():\n    print('growth', os.environ['TF_FORCE_GPU_ALLOW_GROWTH'])\n"
    (tmp_path / "telling.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("PYTEST_PLUGINS", "telling")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    given = {"cpu": False, "quick": True, "here": 1, "nodes": 1, "timeout": 200.0, "deadline": float("inf")}
    (found,) = parts.tests(setting.Setting(out=tmp_path, recipes=(), precisions=(), **given))
    log = (tmp_path / "logs" / "tests.txt").read_text()
    assert found.verdict == "failed" and found.errors[-1] == "no test has run", log
    assert "benchmarks/gpu.sh runs this test" in log and "growth true" in log
    assert found.command.endswith(f" {ROOT / 'tests' / 'gpu'}")
