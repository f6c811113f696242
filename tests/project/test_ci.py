"""The tests with other versions fail, and are not skipped, if a Python is missing."""

import re
import shutil
import subprocess

from launching import ROOT


def test_a_machine_without_the_oldest_python_fails_in_one_line(tmp_path):
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("bash", "dirname", "realpath"):
        (tools / tool).symlink_to(shutil.which(tool))
    (tools / "python3.11").write_text("#!/bin/sh\nexit 127\n")  # as a shim of pyenv does
    (tools / "python3.11").chmod(0o755)
    environment = {"PATH": str(tools), "HOME": str(tmp_path)}
    words = ["bash", ROOT / ".ci" / "versions", "setup", tmp_path / "folder", "2.18", "3.11"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("ci: no Python 3.11 on the PATH, from pyenv or from uv; pyenv install 3.11, or uv")


def test_the_files_of_its_core_are_there():
    named = re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", (ROOT / ".ci" / "versions").read_text())
    assert len(named) > 5 and all(f"def {test}" in (ROOT / file).read_text() for file, test in named), named
