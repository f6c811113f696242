"""The package as pip installs it: a wheel and an sdist, and what works where they are installed.
Modules: __main__"""

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile

import pytest

from hvdgan import __main__ as hvdgan_main
from hvdgan import __version__
from launching import ROOT, copy_sources, run

NAME = f"hvdgan-{__version__}"
TRAIN = "train --nf 4 --max-steps 2 --global-batch-size 8 --image-size 32".split()


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with the sdist, and with the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("built")
    copy_sources(folder / "source")
    done = run([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, folder / "source"], folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def installed(built):
    """The bin folder of an environment with the wheel in it; what the wheel asks for comes from the one that runs."""
    environment = built / "environment"
    venv.create(environment, symlinks=True)
    (site,) = environment.glob("lib/python3.*/site-packages")
    # Without the .pth files there, one of which leads to this checkout.
    (site / "rest.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = f"{environment}/bin/python -m pip install -q --no-deps --no-index --ignore-installed".split()
    done = run([*pip, *built.glob("*.whl")], built, PYTHONPATH="")
    assert done.returncode == 0, done.stdout + done.stderr
    return environment / "bin"


def test_the_wheel_and_the_sdist_hold_the_package_and_no_more(built):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    tracked = {path.relative_to(ROOT).as_posix() for path in (ROOT / "hvdgan").rglob("*.py")}
    tracked |= {path.relative_to(ROOT).as_posix() for path in (ROOT / "hvdgan" / "pages" / "templates").iterdir()}
    meta = f"{NAME}.dist-info"
    written = {f"{meta}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt")}
    assert set(names) == tracked | {"hvdgan/py.typed", f"{meta}/licenses/LICENSE"} | written
    with tarfile.open(built / f"{NAME}.tar.gz") as opened:
        packed = {name.removeprefix(f"{NAME}/") for name in opened.getnames()}
    assert tracked | {"hvdgan/py.typed", "LICENSE", "README.md", "setup.cfg", "pyproject.toml"} <= packed


def test_the_wheel_trains_from_another_folder_without_horovod(installed, tmp_path):
    """As after `pip install hvdgan` beside a TensorFlow."""
    (tmp_path / "horovod.py").write_text("raise ImportError('No module named horovod')\n")
    (tmp_path / "work").mkdir()
    # PYTHONPATH keeps the checkout out.
    done = run([installed / "hvdgan", *TRAIN], tmp_path / "work", PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "work" / "runs" / "dcgan" / "checkpoints" / "latest").exists()
    where = [installed / "python", "-c", "import hvdgan; print(hvdgan.__file__)"]
    assert run(where, tmp_path / "work", PYTHONPATH="").stdout.startswith(str(installed.parent))


@pytest.mark.long
def test_a_job_that_it_writes_runs_without_a_clone(installed, tmp_path):
    """With a srun that starts one task."""
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    for name, acts in (("srun", 'shift 3; exec "$@"'), ("scontrol", "echo localhost")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{acts}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "work").mkdir()
    # As a Python of the nodes, whose Horovod is not asked for MPI: this one's may have none.
    python = installed / ".." / "bin" / "python"
    settings = ["--tasks-per-node", "2", "--python", python]
    slurm = [installed / "hvdgan", "slurm", *settings, "--", *TRAIN[1:], "--run-dir", "a run"]
    done = run(slurm, tmp_path / "work", PYTHONPATH="", PATH=path)
    assert done.returncode == 0, done.stderr
    (tmp_path / "job").write_text(done.stdout)
    job = {"SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": "localhost", "SLURM_TASKS_PER_NODE": "2"}
    done = run(["bash", tmp_path / "job"], tmp_path / "work", PYTHONPATH="", PATH=path, **job)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "one process" in (tmp_path / "work" / "a run" / "log.txt").read_text()


def test_the_command_hands_over_and_refuses_others(tmp_path, monkeypatch, capsys):
    def said(*words, code=0):
        monkeypatch.setattr(sys, "argv", ["hvdgan", *words])
        assert hvdgan_main.main() == code
        return "".join(capsys.readouterr()).splitlines()

    shown = [line.split()[1] for line in said("--help") if line.startswith("  ")]
    assert shown == list(hvdgan_main.COMMANDS)
    assert set(shown) == {path.stem for path in (ROOT / "hvdgan").glob("[a-z]*.py")} - {"api"}
    assert said("--version") == [__version__]
    assert len(said(code=2)) == len(said("trian", code=2)) == 1
    done = run([sys.executable, "-m", "hvdgan", "train", "--nonsense"], tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "--nonsense" in done.stderr


def test_a_folder_of_its_name_does_not_hide_it(tmp_path):
    """Such as a clone in the folder in which Python starts."""
    (tmp_path / "hvdgan").mkdir()
    done = run([sys.executable, "-c", "import hvdgan; print(hvdgan.__version__)"], tmp_path, PYTHONPATH="")
    assert done.stdout.strip() == __version__, done.stderr


@pytest.mark.parametrize("word", ["--help", "recipes"])
def test_a_reader_may_close_the_pipe(word):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "hvdgan", word]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, cwd=ROOT, text=True, timeout=60)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
