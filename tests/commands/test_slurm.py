"""Slurm jobs: their text, and what they do with fake srun, scontrol and sbatch under a real bash."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hvdgan.checkpoints.files import newest, step_of
from hvdgan.slurm import Job, main, script
from launching import BIN, ROOT
from machine import Machine
from messages import refused

GOLDEN = Path(__file__).parent / "golden"
_SUBMIT = """{what} Submit it in the checkout, on a file system
that all nodes share; PYTHON names another Python than its .venv's; the trainer's arguments follow:

  {how}

Resources of the job: edit these lines, or override them: sbatch --time=2:00:00 slurm/{name}.sbatch ...
"""
VENV = ".venv/bin/python"
# The files of slurm/ are the scripts of these jobs.
FILES = {
    "single_node": (
        Job(nodes=1, tasks_per_node=4, python=VENV),
        "One node, a rank for each GPU.",
        "sbatch slurm/single_node.sbatch --recipe dcgan --global-batch-size 256 --run-dir runs/one",
    ),
    "multi_node": (
        Job(nodes=2, tasks_per_node=4, python=VENV),
        "Several nodes, a rank for each GPU.",
        "sbatch slurm/multi_node.sbatch --recipe dcgan --global-batch-size 512 --run-dir runs/big",
    ),
    "elastic": (
        Job(nodes=2, tasks_per_node=4, launcher="elastic", python=VENV),
        "Several nodes; if some are lost, the run continues on the others.",
        "sbatch slurm/elastic.sbatch --recipe dcgan --global-batch-size 512 --run-dir runs/elastic",
    ),
    "array": (
        Job(nodes=1, tasks_per_node=1, seeds="0-4", job_name="hvdgan-seeds", python=VENV),
        "The same run with several seeds, a job for each.",
        "RUNS=runs/dcgan-seeds sbatch slurm/array.sbatch --recipe dcgan",
    ),
    "container": (
        Job(nodes=1, tasks_per_node=4, container="hvdgan.sif", python="python3"),
        "Ranks in a container, of apptainer or of enroot with pyxis.",
        "IMAGE=/images/hvdgan.sif sbatch slurm/container.sbatch --recipe dcgan --global-batch-size 256",
    ),
}
COMMANDS = {
    "four_nodes": "--python /x/bin/python --nodes 4 --gpus-per-node 4 --time-limit 24:00:00 --partition gpu "
    "--account me -- --recipe dcgan --run-dir 'runs/it is' --global-batch-size 512",
    "seeds_in_a_container": "--python python3 --gpus-per-node 2 --time-limit 2-12 --qos long --constraint 'a100|h100' "
    "--mem 0 --seeds 0-15%4 --runs 'my runs' "
    "--container 'docker://x y' --runtime pyxis --mounts /data,/scratch --stage-data '/data/its faces' "
    "--max-requeues 3 --signal-seconds 60 --mpi pmi2 -- --recipe sngan",
    "elastic": "--python 'a b/python' --nodes 3 --tasks-per-node 2 --launcher elastic --min-np 2 "
    "--job-name stretch --output out/%j.txt -- --recipe dcgan",
    "test_of_two_nodes": "--python /x/bin/python --nodes 2 --test --time-limit 3 -- train --recipe dcgan",
}


def file_of(name: str) -> str:
    job, what, how = FILES[name]
    return script(job, opening=_SUBMIT.format(what=what, how=how, name=name))


def compare(path: Path, text: str) -> None:
    """Compare with a golden file; write it instead if HVDGAN_WRITE_GOLDEN is set."""
    if os.environ.get("HVDGAN_WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.read_text() == text, f"HVDGAN_WRITE_GOLDEN=1 python -m pytest {__file__} updates it"


@pytest.mark.parametrize("name", FILES)
def test_the_files_of_slurm_are_what_the_command_writes(name):
    compare(ROOT / "slurm" / f"{name}.sbatch", file_of(name))


@pytest.mark.parametrize("name", COMMANDS)
def test_the_text_of_a_job(name, capsys):
    assert main(shlex.split(COMMANDS[name])) == 0
    text = capsys.readouterr().out
    compare(GOLDEN / f"{name}.sbatch", text)
    checked = subprocess.run(
        [BIN / "shellcheck", "-x", "-"], input=text, text=True, capture_output=True, timeout=60, cwd=ROOT
    )
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("arguments", refused("slurm"))
def test_mistakes(arguments, messages, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "typo.json").write_text('[{}, {"learning_rat": 1}]')
    (tmp_path / "twice.json").write_text('[{"run_dir": "a"}, {"run_dir": "a"}]')
    messages.refuses("slurm", main, arguments)


def test_a_launcher_that_this_horovod_cannot_serve_is_refused(monkeypatch, capsys):
    monkeypatch.setattr("hvdgan.slurm.built_with", lambda: frozenset({"gloo"}))
    assert main(["--nodes", "2"]) == 2 and "--launcher gloo" in capsys.readouterr().err
    assert main(["--nodes", "2", "--launcher", "gloo"]) == 0


class Cluster(Machine):
    """A folder without a clone, and a PATH with a pretended Slurm: its srun trains nothing and ends with $CODE."""

    def __init__(self, folder):
        super().__init__(folder)
        self.here = folder / "a folder"
        self.here.mkdir()
        self.has(
            scontrol='note scontrol "$@"',
            srun='note srun "$@"; eval "$SAYS"; exit "$CODE"',
            sbatch='note sbatch "$@"; cat >"$HVDGAN_NOTES.text"; echo "Submitted batch job 7"',
            **{"nvidia-smi": "exit 9"},
        )

    def environment(self, **more):
        job = {"SLURM_JOB_ID": "5", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NAME": "hvdgan"}
        job |= {"SLURM_TMPDIR": str(self.folder / "disk"), "PYTHON": sys.executable, "CODE": "0", "SAYS": ""}
        return super().environment(**{**job, **more})

    def job(self, name, *arguments, **more):
        """Run a job's script, as sbatch would have it run: a copy, elsewhere, in the folder of the submission."""
        (self.folder / "script").write_text(file_of(name) if name in FILES else name)
        return self.run("bash", self.folder / "script", *arguments, cwd=self.here, **more)


@pytest.fixture
def cluster(tmp_path):
    return Cluster(tmp_path)


TRAIN = [sys.executable, "-m", "hvdgan.train"]
SLURM = [sys.executable, "-m", "hvdgan.slurm"]
SRUN = ["srun", "--mpi=pmix", "--kill-on-bad-exit=1", "--wait=600"]


def test_a_job_starts_its_ranks_by_srun(cluster):
    words = ["--run-dir", "it is"]
    for name in ("single_node", "multi_node"):
        done = cluster.job(name, *words)
        assert done.returncode == 0, done.stderr
        assert cluster.called() == [[*SRUN, *TRAIN, *words]]
        assert shlex.split(done.stderr[done.stderr.index("+ ") :])[1:] == [*SRUN, *TRAIN, *words]
    assert cluster.job("multi_node", SRUN_MPI="pmi2").returncode == 0
    assert cluster.called()[0][1] == "--mpi=pmi2"


@pytest.mark.parametrize(
    ("code", "more", "requeued", "said"),
    [
        ("75", {}, ["5"], "requeueing, 1 of at most 20 times"),
        ("75", {"SLURM_RESTART_COUNT": "20"}, [], "requeued 20 times already (MAX_REQUEUES=20)"),
        ("75", {"SLURM_ARRAY_JOB_ID": "4", "SLURM_ARRAY_TASK_ID": "2"}, ["4_2"], "requeueing"),
        (
            "75",
            {"SAYS": "echo 'stopped after step 3 (rank 0: /r/stop exists) and saved' >&2"},
            [],
            "as the stop file asks",
        ),
        (
            "75",
            {"SAYS": "trap 'exit 75' USR2; kill -TERM $PPID; for n in $(seq 300); do sleep 0.1; done"},
            [],
            "Slurm has ended it, so it is not requeued from here",
        ),
        ("1", {}, [], ""),
        ("137", {"SAYS": "echo 'srun: error: n1: task 0: Exited with exit code 75' >&2"}, ["5"], "requeueing"),
    ],
)
def test_back_into_the_queue(cluster, code, more, requeued, said):
    done = cluster.job("multi_node", CODE=code, **more)
    assert done.returncode == (75 if "75" in code + more.get("SAYS", "") else int(code))
    assert [call[1:] for call in cluster.called() if call[0] == "scontrol"] == [["requeue", word] for word in requeued]
    assert said in done.stderr and ("requeue" in done.stderr) == ("requeue" in said)


def test_a_job_of_test_runs_the_doctor_and_returns_to_no_queue(cluster):
    text = script(Job(nodes=2, test=True, seeds="0-4", python=sys.executable))
    assert cluster.job(text, CODE="75").returncode == 75
    assert cluster.called() == [[*SRUN, sys.executable, "-m", "hvdgan.doctor"]]
    assert "--requeue" not in text and "--array" not in text and "#SBATCH --time=5\n" in text


def test_an_array_of_seeds(cluster):
    more = {"SLURM_ARRAY_JOB_ID": "4", "SLURM_ARRAY_TASK_ID": "3"}
    assert cluster.job("array", "--recipe", "dcgan", RUNS="my runs", **more).returncode == 0
    assert cluster.called() == [[*SRUN, *TRAIN, "--recipe", "dcgan", "--seed", "3", "--run-dir", "my runs/seed-3"]]
    assert "--seed: the array sets it" in cluster.job("array", "--seed=1", **more).stderr


SWEEPS = {
    "list.toml": "[[runs]]\nlearning-rate = 1e-4\nflip = true\n[[runs]]\nlearning-rate = 2e-4\nrun_dir = 'it is'\n",
    "grid.yaml": "learning_rate: [0.0001, 0.0002]\nflip: [true, false]\nnf: 4\n",
}


@pytest.mark.parametrize("name", SWEEPS)
def test_an_array_of_settings(cluster, capsys, name):
    path = cluster.folder / name
    path.write_text(SWEEPS[name])
    assert main(["--array", str(path), "--runs", "my runs", "--", "--recipe", "dcgan", "--steps", "8"]) == 0
    text = capsys.readouterr().out
    number = 4 if name == "grid.yaml" else 2
    assert f"\n#SBATCH --array=0-{number - 1}\n" in text and "\n#SBATCH --output=%x-%A_%a.out\n" in text
    path.unlink()  # the script does not need it
    more = {"SLURM_ARRAY_JOB_ID": "4", "SLURM_ARRAY_TASK_ID": "1"}
    assert cluster.job(text, "--keep", "1", **more).returncode == 0
    own = ["--run-dir=my runs/run-1", "--learning-rate=0.0001", "--no-flip", "--nf=4"]
    own = own if name == "grid.yaml" else ["--run-dir=it is", "--learning-rate=0.0002"]
    assert cluster.called() == [[*SRUN, *TRAIN, "--recipe", "dcgan", "--steps", "8", *own, "--keep", "1"]]


def test_containers(cluster):
    train, here = ["python", "-m", "hvdgan.train", "--recipe", "dcgan"], str(cluster.here)
    more = {"IMAGE": "x y.sif", "MOUNTS": "/data,/more"}
    assert cluster.job("container", "--recipe", "dcgan", **more).returncode == 0
    apptainer = ["apptainer", "exec", "--bind", f"{here},/data,/more", "--pwd", here, "x y.sif"]
    assert cluster.called() == [[*SRUN, *apptainer, *train]]
    cluster.has(**{"nvidia-smi": "echo H100"})
    assert cluster.job("container", "--recipe", "dcgan", **more).returncode == 0
    assert cluster.called()[0][4:7] == ["apptainer", "exec", "--nv"]
    assert cluster.job("container", "--recipe", "dcgan", RUNTIME="pyxis", **more).returncode == 0
    mounts = f"--container-mounts={here}:{here},/data:/data,/more:/more"
    pyxis = ["--container-image=x y.sif", mounts, f"--container-workdir={here}"]
    assert cluster.called() == [[*SRUN, *pyxis, *train]]


def test_a_job_of_the_command_is_handed_to_sbatch(cluster):
    done = cluster.run(*SLURM, "--nodes", "2", "--submit", "--", "--run-dir", "it is", cwd=cluster.here)
    assert (done.returncode, done.stdout) == (0, "Submitted batch job 7\n"), done.stderr
    text = (cluster.folder / "notes.text").read_text()
    cluster.called()
    done = cluster.job(text, "--seed", "1")
    assert done.returncode == 0, done.stderr
    assert cluster.called() == [[*SRUN, *TRAIN, "--run-dir", "it is", "--seed", "1"]]


def test_a_requeued_job_resumes_with_the_command_that_it_began_with(cluster):
    cluster.has(srun='shift 3; exec "$@"')
    tiny = "--recipe paced:OneStep --image-size 8 --global-batch-size 8 --steps 50".split()
    command = [*tiny, "--resume", "never", "--run-dir", str(cluster.folder / "a")]
    assert cluster.job("single_node", *command).returncode == 75
    assert [call[:2] for call in cluster.called()] == [["scontrol", "requeue"]]
    reached = newest(cluster.folder / "a" / "checkpoints")
    done = cluster.job("single_node", *command, SLURM_RESTART_COUNT="1")
    assert done.returncode == 75, done.stderr
    assert f"resuming at step {step_of(reached)} of 50" in done.stderr
