"""Starting ranks, or as many independent copies of one rank, and collecting what they have measured."""

import contextlib
import dataclasses
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from hvdgan.cli import outputs
from hvdgan.cli.errors import RunError, UserError
from hvdgan.diagnostics.speed.spec import TIMELINE, Spec
from hvdgan.diagnostics.speed.starter import Launcher

Kind = Literal["ranks", "copies"]


@dataclasses.dataclass(frozen=True)
class Variant:
    """What is launched: so many ranks with so many images each, or as many copies that are one rank each."""

    kind: Kind
    count: int
    local_batch_size: int

    def __str__(self) -> str:
        what = "rank" if self.kind == "ranks" else "independent copy"
        plural = what if self.count == 1 else f"{what}s" if self.kind == "ranks" else "independent copies"
        return f"{self.count} {plural} of {self.local_batch_size} images"

    @property
    def global_batch_size(self) -> int:
        """Of the ranks together, or of each copy."""
        return self.local_batch_size * (self.count if self.kind == "ranks" else 1)


@dataclasses.dataclass(frozen=True)
class Bench:
    """What all launches share.

    Args:
        launcher: starts the processes.
        arguments: of hvdgan.train.
        steps: to measure.
        cores: per process; 0: its share of its host's, as if the most processes ran there.
        most: processes of any launch.
        timeout: seconds that a launch may take.
    """

    launcher: Launcher
    arguments: list[str]
    steps: int
    cores: int
    most: int
    timeout: float

    def launch(self, variant: Variant, *, allreduce: bool = False, timeline: Path | None = None) -> dict[str, Any]:
        """Start a variant, wait for its end, and return its figures.

        Args:
            variant: what to start.
            allreduce: whether to measure the all-reduce too.
            timeline: file for Horovod's timeline.

        Raises:
            UserError: the processes call it a mistake of the user's.
            RunError: they fail, or take too long.
        """
        with self._folder() as folder:
            spec = Spec(
                arguments=self.arguments,
                global_batch_size=variant.global_batch_size,
                steps=self.steps,
                cores=self.cores,
                processes_per_host=max(self.launcher.spread(self.most)),
                copies=variant.count if variant.kind == "copies" else 0,
                allreduce=allreduce,
                timeline=timeline is not None,
                began=time.time(),
                folder=str(folder),
            )
            path = folder / "spec.json"
            path.write_text(json.dumps(dataclasses.asdict(spec)), encoding="utf-8")
            launcher = self.launcher.words(variant.count, self.cores)
            command = [*launcher, sys.executable, "-m", "hvdgan.diagnostics.speed.worker", str(path)]
            _run(command, folder / "said.txt", variant, self.timeout)
            numbers = range(variant.count if variant.kind == "copies" else 1)
            try:
                results = [json.loads((folder / f"result-{number}.json").read_text()) for number in numbers]
            except OSError as error:
                raise RunError(f"{variant}: no figures in {error.filename}; do all hosts see that folder?") from error
            if timeline:
                outputs.write(timeline, functools.partial(_copy, folder / TIMELINE))
        return results[0] if variant.kind == "ranks" else {"copies": results}

    @contextlib.contextmanager
    def _folder(self) -> Iterator[Path]:
        # Other hosts have another /tmp; the folder that the command is started in they share, or no training works.
        parent = Path.cwd() if self.launcher.elsewhere else None
        with tempfile.TemporaryDirectory(prefix=".hvdgan-bench-", dir=parent, ignore_cleanup_errors=True) as name:
            yield Path(name)


def _run(command: Sequence[str], log: Path, variant: Variant, timeout: float) -> None:
    with log.open("wb") as said:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise RunError(f"{variant}: not done after {timeout:g} s; --timeout gives more") from None
        finally:
            _end(process)
    if code:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        complaint = next((line.partition("hvdgan: ")[2] for line in lines if "hvdgan: " in line), "Traceback")
        if complaint.startswith("Traceback"):
            complaint = "\n".join([f"exit code {code}; the end of what it said:", *lines[-40:]])
        # horovodrun makes 1 of any exit code of its processes; one rank, which comes first, starts without it.
        raise (UserError if code == UserError.exit_code else RunError)(f"{variant}: {complaint}")


def _copy(file: Path, to: Path) -> None:
    shutil.copyfile(file, to)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a launcher and, through it, what it has started, also on other hosts."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(15)
