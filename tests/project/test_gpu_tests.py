"""The tests that benchmarks/gpu.sh runs on GPUs: where they are, and that pytest leaves the GPUs' memory to them."""

import re
import sys

import pytest

from launching import ROOT, run

sys.path.insert(0, str(ROOT / "benchmarks"))
from gpu import parts, setting

TESTS = ROOT / "tests"


def test_the_tests_that_need_a_gpu_are_in_one_folder():
    """The script collects no other one, because a module of another folder may compute when it is imported."""
    marked = {path for path in TESTS.rglob("*.py") if re.search(r"\bmark\.gpu\b", path.read_text())}
    assert {path.parent for path in marked} == {TESTS / "gpu"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("folder", "launched", "among"),
    [("", {}, "tests/gpu/"), ("parallel", {"HOROVOD_SIZE": "2", "HOROVOD_RANK": "0"}, "tests/parallel/test_reduction")],
)
def test_no_test_opens_a_device_when_it_is_imported(folder, launched, among):
    """tests/parallel is collected by the ranks of a launcher only."""
    words = ["-m", "pytest", "-q", "-n", "0", "-p", "opening", "-p", "no:cacheprovider", "--collect-only"]
    done = run([sys.executable, *words, str(TESTS / folder)], ROOT, seconds=280, **launched)
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
    assert among in done.stdout


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
    assert found.command.endswith(f" {TESTS / 'gpu'}")
