"""A small training as a job of the cluster, and what has come of it."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from cluster import OVER, PYTHONPATH, Cluster
from launching import ROOT, SECONDS, launcher, run, wait_until
from saved import latest, tensors

STEPS = 200
SETTINGS = [
    *"--recipe paced:Paced --norm batch --image-size 8 --global-batch-size 16".split(),
    *f"--steps {STEPS} --log-every 1 --checkpoint-every 10 --sample-every 0".split(),
]
TRAIN = ["python", "-m", "hvdgan.train", *SETTINGS]
# What the job asks for on this cluster; #SBATCH lines have less to say than these.
NODES = "--nodes=2 --ntasks-per-node=1 --cpus-per-task=1 --time=10".split()


class Job:
    """A job of a file in slurm/ that trains into folder/run, and is slowed down while the brake is on.

    Args:
        folder: folder to make, in the cluster's shared folder.
        options: options of sbatch.
        arguments: arguments of the trainer, after SETTINGS.
        env: environment variables for sbatch.
    """

    def __init__(
        self, cluster: Cluster, folder: Path, *options, arguments=(), script="multi_node.sbatch", brake=False, **env
    ) -> None:
        self._cluster, self._folder, self.run_dir = cluster, folder, folder / "run"
        folder.mkdir(exist_ok=True)
        self.brake(brake)
        words = [*NODES, f"--output={folder}/output.txt", *options, ROOT / "slurm" / script]
        # The array names its run folders itself.
        where = [] if script == "array.sbatch" else ["--run-dir", self.run_dir]
        arguments = [*SETTINGS, *where, *arguments]
        env = {"HVDGAN_BRAKE": str(folder / "brake"), "PYTHON": sys.executable, **env}
        self.number = cluster.slurm("sbatch", "--parsable", *words, *map(str, arguments), cwd=ROOT, **env)

    def brake(self, on: bool) -> None:
        """Slow it down, or let it go."""
        if on:
            (self._folder / "brake").touch()
        else:
            (self._folder / "brake").unlink(missing_ok=True)

    def said(self) -> str:
        """Everything that it and its ranks have said so far."""
        output = self._folder / "output.txt"
        return output.read_text(errors="replace") if output.exists() else "nothing yet"

    def facts(self) -> dict[str, str]:
        """What Slurm says of it."""
        return self._cluster.job(self.number)

    def step(self) -> int:
        """The last step that it has logged."""
        return last_step(self.run_dir)

    def wait_for_step(self, step: int) -> None:
        """Until it has logged that step."""
        self._wait_until(lambda: self.step() >= step)

    def wait_for(self, words: str) -> None:
        """Until it has said that."""
        self._wait_until(lambda: words in self.said())

    def ended(self, *states: str, seconds: float = SECONDS) -> dict[str, str]:
        """Wait for its end, which must be one of those states."""
        facts = self._cluster.ended(self.number, seconds)
        assert facts["JobState"] in states, f"{facts}\n{self.said()}"
        return facts

    def _wait_until(self, is_so: Callable[[], bool]) -> None:
        what = lambda: f"{self.facts()}\n{self.said()}"  # noqa: E731
        wait_until(lambda: is_so() or self.facts()["JobState"] in OVER, SECONDS, what, every=0.5)
        assert is_so(), what()


class OverSsh:
    """A run on both nodes that a script of launch/ has started, slowed down by the brake; it has done some steps.

    Args:
        flags: flags of hvdgan launch.
        arguments: arguments of the trainer, after SETTINGS.
    """

    def __init__(self, cluster: Cluster, folder: Path, script: str, *flags, arguments=(), **env) -> None:
        self.run_dir, self._brake, output = folder / "run", folder / "brake", folder / "output.txt"
        folder.mkdir()
        self._brake.touch()
        words = [ROOT / "launch" / script, "-H", "node1:1,node2:1", *flags, *SETTINGS, *arguments]
        with output.open("wb") as out:
            streams = {"stdout": out, "stderr": subprocess.STDOUT}
            env = {"HVDGAN_BRAKE": str(self._brake), **env}
            self._process = cluster.start([*words, "--run-dir", self.run_dir], folder, **streams, **env)
        self.said = output.read_text
        self.wait_for_step(3)

    def wait_for_step(self, step: int) -> None:
        """Until it has logged that step."""
        self.wait_until(lambda: last_step(self.run_dir) >= step)
        assert self._process.poll() is None, self.said()

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Until something is so, or it has ended."""
        wait_until(lambda: is_so() or self._process.poll() is not None, SECONDS, self.said)

    def ended(self, seconds: float = SECONDS) -> int:
        """Let the brake go, wait for its end, and return its exit code."""
        self._brake.unlink()
        wait_until(lambda: self._process.poll() is not None, seconds, self.said)
        return self._process.returncode


def last_step(run_dir: Path) -> int:
    """The last step that a run has logged; 0: none."""
    metrics = run_dir / "metrics.jsonl"
    # The last line may be half written.
    lines = metrics.read_text().rpartition("\n")[0].splitlines() if metrics.exists() else []
    return json.loads(lines[-1])["step"] if lines else 0


def state(run_dir: Path) -> dict[str, np.ndarray]:
    """The tensors of a run's last checkpoint, which must be that of the last step."""
    assert latest(run_dir) == STEPS
    return tensors(run_dir, STEPS)


def assert_same_bits(run_dir: Path, expected: dict[str, np.ndarray]) -> None:
    """Every tensor of the run's last checkpoint has the bits expected, and every step is logged once."""
    found = state(run_dir)
    assert found.keys() == expected.keys()
    assert [name for name in expected if found[name].tobytes() != expected[name].tobytes()] == []
    steps = [json.loads(line)["step"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, STEPS + 1))


def on_this_host(folder: Path, controller: str) -> dict[str, np.ndarray]:
    """The result of the same run on this host alone, on two ranks."""
    folder.mkdir()
    words = [*launcher(2, controller), sys.executable, *TRAIN[1:], "--run-dir", folder / "run"]
    done = run(words, folder, PYTHONPATH=PYTHONPATH)
    assert done.returncode == 0, done.stderr
    return state(folder / "run")
