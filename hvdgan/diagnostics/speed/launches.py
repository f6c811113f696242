"""Launches ranks, or the same number of independent copies of one rank, and collects their results."""

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

from hvdgan.cli.errors import RunError, UserError
from hvdgan.cli.files import outputs
from hvdgan.diagnostics.speed.spec import TIMELINE, Spec
from hvdgan.diagnostics.speed.starter import Launcher

Kind = Literal["ranks", "copies"]


@dataclasses.dataclass(frozen=True)
class Variant:
    """Processes of a launch.

    Args:
        kind: ranks of one run, or independent copies of a run of one rank.
        count: number of processes.
        local_batch_size: images per step and process.
    """

    kind: Kind
    count: int
    local_batch_size: int

    def __str__(self) -> str:
        what = "rank" if self.kind == "ranks" else "independent copy"
        plural = what if self.count == 1 else f"{what}s" if self.kind == "ranks" else "independent copies"
        return f"{self.count} {plural} of {self.local_batch_size} images"

    @property
    def global_batch_size(self) -> int:
        """Images per step, of all ranks together or of each copy."""
        return self.local_batch_size * (self.count if self.kind == "ranks" else 1)


@dataclasses.dataclass(frozen=True)
class Bench:
    """Settings that all launches share.

    Args:
        launcher: launcher of the processes.
        arguments: arguments of hvdgan.train.
        steps: number of steps to measure.
        cores: cores per process; 0: an equal share of the host's cores in the largest launch.
        most: number of processes of the largest launch.
        timeout: seconds that a launch may take.
    """

    launcher: Launcher
    arguments: list[str]
    steps: int
    cores: int
    most: int
    timeout: float

    def launch(self, variant: Variant, *, timeline: Path | None = None) -> dict[str, Any]:
        """Launch a variant, wait for its end, and return its result.

        Args:
            variant: processes to launch.
            timeline: file for Horovod's timeline.

        Raises:
            UserError: the processes report a mistake of the user's.
            RunError: the processes fail, or take too long.
        """
        with self._folder() as folder:
            spec = Spec(
                arguments=self.arguments,
                global_batch_size=variant.global_batch_size,
                steps=self.steps,
                cores=self.cores,
                processes_per_host=max(self.launcher.spread(self.most)),
                copies=variant.count if variant.kind == "copies" else 0,
                timeline=timeline is not None,
                began=time.time(),
                folder=str(folder),
            )
            path = folder / "spec.json"
            path.write_text(json.dumps(dataclasses.asdict(spec)), encoding="utf-8")
            starter = self.launcher.starter(variant.count, self.cores)
            command = [*starter.words, sys.executable, "-m", "hvdgan.diagnostics.speed.worker", str(path)]
            _run(command, starter.environment, folder / "output.txt", variant, self.timeout)
            numbers = range(variant.count if variant.kind == "copies" else 1)
            try:
                results = [json.loads((folder / f"result-{number}.json").read_text()) for number in numbers]
            except OSError as error:
                raise RunError(f"{variant}: no result in {error.filename}; do all hosts see that folder?") from error
            if timeline:
                outputs.write(timeline, functools.partial(shutil.copyfile, folder / TIMELINE))
        return results[0] if variant.kind == "ranks" else {"copies": results}

    @contextlib.contextmanager
    def _folder(self) -> Iterator[Path]:
        # Hosts have their own /tmp, but must share the working folder, or no run works.
        parent = Path.cwd() if self.launcher.elsewhere else None
        with tempfile.TemporaryDirectory(prefix=".hvdgan-bench-", dir=parent, ignore_cleanup_errors=True) as name:
            yield Path(name)


def _run(command: Sequence[str], env: dict[str, str], log: Path, variant: Variant, timeout: float) -> None:
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
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
            complaint = "\n".join([f"exit code {code}; the end of its output:", *lines[-40:]])
        # horovodrun turns any exit code of its processes into 1; one rank, which is launched first, starts without it.
        raise (UserError if code == UserError.exit_code else RunError)(f"{variant}: {complaint}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a launcher, which ends the processes it has started, also on other hosts."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(15)
