"""The tests that benchmarks/gpu.sh runs on GPUs: where they are, and that pytest leaves the GPUs' memory to them."""

import sys

import pytest

from launching import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
from gpu import parts, setting

TESTS = ROOT / "tests"


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
