"""benchmarks/gpu.sh on the CPU: all parts run; results and page say what was found."""

import json
import signal
import sys

import psutil
import pytest

from launching import ROOT, run, started, wait_until

sys.path.insert(0, str(ROOT / "benchmarks"))
import processes
from gpu import parts

SCRIPT = ROOT / "benchmarks" / "gpu.sh"


@pytest.mark.long
@pytest.mark.timeout(2000)
def test_all_parts_run_on_the_cpu(tmp_path):
    words = "--cpu --quick --recipe dcgan,completion --precision float32 --out out".split()
    done = run([SCRIPT, *words], tmp_path, seconds=1900)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()[1:]]
    assert list(dict.fromkeys(each["part"] for each in found)) == list(parts.PARTS)
    verdicts = {each["name"]: each["verdict"] for each in found}
    assert set(verdicts.values()) == {"passed"}
    assert {"dcgan: one rank and the CPU", "dcgan: 2 ranks and one", "float32 by XLA", "tests/gpu"} <= verdicts.keys()
    (trained,) = [each["found"] for each in found if each["name"] == "completion, float32"]
    assert trained.count(" images/s (") == 3 and trained.endswith(" GB")
    text = (tmp_path / "out" / "page.md").read_text()
    assert "This ran on the CPU, and says nothing about GPUs" in text
    assert "of independent copies" in text and "| hvdgan | keras |" in text and "all-reduce" in text


def test_the_end_of_a_job_ends_the_running_command(tmp_path):
    """Slurm sends SIGTERM; what was done is there."""
    words = [SCRIPT, *"--cpu --quick --only demo --out out".split()]
    with started(words, tmp_path) as process:
        log = tmp_path / "out" / "logs" / "demo.txt"
        wait_until(log.exists, 60, (tmp_path / "said").read_text)
        below = process.children(recursive=True)
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
