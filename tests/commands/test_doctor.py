"""hvdgan.doctor: its findings here, under launchers, and on machines with one fault each.
Modules: launching.programs, diagnostics.allreduce, diagnostics.folders, diagnostics.installation,
diagnostics.placement, diagnostics.probe, diagnostics.table"""

import json
import os
import sys

import pytest

from hvdgan.diagnostics import installation, placement
from hvdgan.diagnostics.allreduce import SIZES
from hvdgan.diagnostics.installation import package_version
from hvdgan.diagnostics.table import Row
from hvdgan.doctor import main
from launching import EACH_CONTROLLER, ROOT, launcher, run
from machine import Machine
from messages import refused

DOCTOR = [sys.executable, "-m", "hvdgan.doctor"]
ROW = {"check", "found", "verdict", "hint"}


def rows_of(facts):
    return {row["check"]: row for row in facts["rows"]}


def test_one_process_gets_one_table_and_exit_code_0(tmp_path):
    done = run([*DOCTOR, "--json", "facts.json"], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    facts = json.loads((tmp_path / "facts.json").read_text())
    heads, *lines = done.stdout.splitlines()
    assert heads.split() == ["check", "verdict", "found", "hint"]
    assert [line.split("  ")[0] for line in lines] == [row["check"] for row in facts["rows"]]
    found = rows_of(facts)
    assert {"Python", "launcher", "run folder", "TensorFlow", "Keras", "Horovod", "MPI", "NCCL", "GPUs"} <= set(found)
    assert {row["verdict"] for row in facts["rows"]} == {"ok"}
    assert f"built for TensorFlow {package_version('tensorflow')}" in found["Horovod"]["found"]
    assert (facts["size"], facts["controller"], facts["allreduce"]) == (1, None, [])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["facts.json"]


@pytest.mark.long
@pytest.mark.parametrize("controller", EACH_CONTROLLER)
def test_two_ranks_measure_and_rank_0_alone_prints(tmp_path, controller):
    words = "--run-dir shared/run --json facts.json".split()
    done = run([*launcher(2, controller), *DOCTOR, *words], tmp_path, forked=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("verdict") == 1 and "[1]<stdout>" not in done.stdout and "[1,1]" not in done.stdout
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert (facts["size"], facts["controller"], facts["verdict"]) == (2, controller, "ok")
    assert [each["bytes"] for each in facts["allreduce"]] == [*SIZES]
    for each in facts["allreduce"]:
        assert 0 < each["low"] <= each["seconds"] <= each["high"] and 3 <= each["repeats"] <= 50
        assert each["bytes_per_sec"] == pytest.approx(each["bytes"] / each["seconds"])
        assert each["bus_bytes_per_sec"] == pytest.approx(each["bytes_per_sec"])  # 2 (n - 1) / n of two ranks
    assert len(facts["ranks"]) == 2 and all(row.keys() == ROW for row in facts["rows"])
    found = rows_of(facts)
    assert "lock respected by every rank" in found["shared folder"]["found"]
    assert {"versions", "clocks", "cores", "ranks", "all-reduce 4 B", "all-reduce 64 MiB"} <= set(found)
    assert not (tmp_path / "shared").exists()


def test_a_broken_place_and_a_broken_package_are_rows_and_exit_code_1(tmp_path):
    (tmp_path / "file").touch()
    package = tmp_path / "broken" / "tensorflow"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import os; os.kill(os.getpid(), 11)")
    env = {"PYTHONPATH": f"{package.parent}:{ROOT}", "SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}
    done = run([*DOCTOR, *"--run-dir file/run --json facts.json".split()], tmp_path, **env, SLURM_JOB_NUM_NODES="2")
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stdout + done.stderr
    rows = rows_of(json.loads((tmp_path / "facts.json").read_text()))
    assert rows["run folder"]["verdict"] == rows["TensorFlow"]["verdict"] == "fail"
    assert "Not a directory" in rows["run folder"]["found"]
    assert "it ended with signal 11" in rows["TensorFlow"]["found"] and "MPI" in rows
    assert rows["Slurm"]["verdict"] == "warn" and "srun --mpi=pmix starts one for" in rows["Slurm"]["hint"]


@pytest.mark.parametrize("arguments", refused("doctor"))
def test_a_mistake_is_one_line_and_exit_code_2(monkeypatch, tmp_path, messages, arguments):
    monkeypatch.chdir(tmp_path)
    messages.refuses("doctor", main, arguments, folder=tmp_path)


BOTH = {"mpi": True, "gloo": True}


@pytest.fixture
def bare(no_launcher, tmp_path):
    no_launcher.chdir(tmp_path)
    return no_launcher


@pytest.fixture
def machine(bare, tmp_path):
    """The programs of this process, in place of the real ones."""
    machine = Machine(tmp_path, alone=True)
    bare.setenv("PATH", str(machine.bin))
    return machine


@pytest.mark.parametrize(
    ("said", "build", "verdict", "found"),
    [
        ("mpirun (Open MPI) 5.0.11", BOTH, "fail", "horovodrun cannot drive it"),
        ("mpirun (Open MPI) 5.0.11", {**BOTH, "mpi": False}, "ok", "horovodrun cannot drive it"),
        ("mpirun (Open MPI) 4.1.4", BOTH, "ok", "Open MPI 4.1.4; horovodrun can drive it"),
        ("HYDRA build details: MPICH Version: 4.0.2", BOTH, "ok", "MPICH 4.0.2; horovodrun can drive it"),
        (None, BOTH, "warn", "no mpirun on the PATH"),
    ],
)
def test_whether_horovodrun_can_drive_the_mpi(machine, said, build, verdict, found):
    machine.has(**({"mpirun": f"echo '{said}'"} if said else {}))
    row = installation.mpi(build)
    assert row.verdict == verdict and found in row.found and bool(row.hint) == (verdict != "ok")


LAUNCHED = {"HOROVOD_SIZE": "2", "HOROVOD_RANK": "0"}


@pytest.mark.parametrize(
    ("tasks", "launched", "verdict", "hint"),
    [("4", {}, "warn", "srun --mpi=pmix"), ("4", LAUNCHED, "fail", "each of the 4 task(s)"), ("2", LAUNCHED, "ok", "")],
)
def test_the_allocation_against_what_was_started(bare, tasks, launched, verdict, hint):
    for name, value in {"SLURM_JOB_ID": "7", "SLURM_NTASKS": tasks, **launched}.items():
        bare.setenv(name, value)
    row = placement.slurm()
    assert row is not None and row.verdict == verdict and hint in row.hint


def test_srun_without_pmi_is_refused_before_every_task_is_rank_0_of_1(bare):
    bare.setenv("SLURM_STEP_NUM_TASKS", "2")
    bare.setenv("SLURM_PROCID", "0")
    assert placement.launcher().verdict == "fail" and "--mpi=pmix" in placement.launcher().hint
    bare.setenv("PMIX_RANK", "0")
    assert placement.launcher().verdict == "ok"


def test_hosts_are_reached_as_horovodrun_does_or_named(machine):
    machine.has(ssh='while [ "$1" != -- ]; do shift; done; [ "$2" = good ] || { echo "$2: no route" >&2; exit 255; }')
    assert placement.ssh([os.uname().nodename, "good"], needed=True) == Row("ssh", "1 other host(s) reached")
    bad = placement.ssh(["good", "bad"], needed=True)
    assert bad.verdict == "fail" and bad.found == "bad: bad: no route" and "ssh-copy-id" in bad.hint
