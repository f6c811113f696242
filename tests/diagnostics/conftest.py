"""An environment without a launcher, and programs that tests put on the PATH."""

import os

import pytest


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """No launcher's words, no allocation, and an empty working folder."""
    for name in list(os.environ):
        if name.startswith(("HOROVOD_", "OMPI_COMM", "PMI", "SLURM_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return monkeypatch


@pytest.fixture
def put_on_path(bare, tmp_path):
    """Replaces the PATH by a folder with shell scripts of the given names."""

    def put(**scripts):
        folder = tmp_path / "bin"
        folder.mkdir()
        for name, text in scripts.items():
            (folder / name).write_text(f"#!/bin/sh\n{text}\n")
            (folder / name).chmod(0o755)
        bare.setenv("PATH", str(folder))

    return put
