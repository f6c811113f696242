"""CI without MPI fails, and is not skipped, if the oldest Python is missing."""

import re
import shutil
import subprocess

from launching import ROOT


def test_a_machine_without_the_oldest_python_fails_in_one_line(tmp_path):
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("bash", "dirname"):
        (tools / tool).symlink_to(shutil.which(tool))
    (tools / "python3.10").write_text("#!/bin/sh\nexit 127\n")  # as a shim of pyenv does
    (tools / "python3.10").chmod(0o755)
    environment = {"PATH": str(tools), "HOME": str(tmp_path)}
    done = subprocess.run(
        ["bash", ROOT / ".ci" / "oldest"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith(
        f"ci: no Python 3.10 on the PATH or in {tmp_path}/.pyenv/versions; install python3.10"
    )


def test_the_files_of_its_core_are_there():
    named = re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", (ROOT / ".ci" / "oldest").read_text())
    assert len(named) > 5 and all(f"def {test}" in (ROOT / file).read_text() for file, test in named), named
