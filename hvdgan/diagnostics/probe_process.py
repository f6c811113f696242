"""Starts hvdgan.diagnostics.probe and collects its findings, also when it crashes or hangs."""

import dataclasses
import json
import os
import selectors
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

from hvdgan.diagnostics import probe
from hvdgan.diagnostics.folders import SHARED_FOLDER
from hvdgan.diagnostics.installation import SETUP
from hvdgan.diagnostics.table import Row

_CHECKS = {probe.IMPORT_TENSORFLOW: "TensorFlow", probe.IMPORT_HOROVOD: "Horovod", probe.JOIN: "ranks"}
_HINTS = {
    probe.IMPORT_TENSORFLOW: "launch/setup.sh installs it",
    probe.IMPORT_HOROVOD: SETUP,
    probe.JOIN: "are all ranks up, with the same Horovod, and does the launcher use the MPI it was built with?",
    SHARED_FOLDER: "--run-dir names a folder that rank 0 can write",
}


@dataclasses.dataclass
class Findings:
    """Messages of the probe so far.

    Attributes:
        rows: rows of the table.
        build: features that Horovod was built with; None if it cannot be imported.
        ranks: size, controller, and the facts of each rank; empty if this process did not join.
        allreduce: figures of each all-reduce.
        part: name of the part that began last.
        complete: True after the last message.
    """

    rows: list[Row] = dataclasses.field(default_factory=list)
    build: dict[str, Any] | None = None
    ranks: dict[str, Any] = dataclasses.field(default_factory=dict)
    allreduce: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    part: str = ""
    complete: bool = False

    def add(self, message: dict[str, Any]) -> None:
        """Add one message of the probe."""
        if "row" in message:
            self.rows.append(Row(**message["row"]))
        elif "allreduce" in message:
            self.allreduce.append(message["allreduce"])
        elif "error" in message:
            self.add_failure(message["error"])
            self.complete = True
        else:
            self.part = message.get("begin", self.part)
            self.build = message.get("build", self.build)
            self.ranks = message.get("ranks", self.ranks)
            self.complete = message.get("end", False)

    def add_failure(self, reason: str) -> None:
        """Add the row of a part that failed, with its most likely remedy."""
        hint = "" if "launch/setup.sh" in reason else _HINTS.get(self.part, "see the output of the other ranks")
        self.rows.append(Row(_CHECKS.get(self.part, self.part or "probe"), reason[:240], "fail", hint))


def run_probe(run_dir: Path, max_bytes: int, seconds: float, timeout: float) -> Findings:
    """Run the probe to its end, with all-reduces of up to max_bytes for `seconds` each.

    It counts as hanging after `timeout` seconds without a message.
    """
    findings = Findings()
    reader, writer = os.pipe()
    arguments = [str(writer), str(run_dir), str(max_bytes), str(seconds)]
    with os.fdopen(reader, "rb") as lines, tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [sys.executable, "-m", probe.__name__, *arguments],
            pass_fds=[writer],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ},
        )
        os.close(writer)
        try:
            ended = _read(lines, findings, timeout)
            process.wait(timeout=10 if ended else 0)
        except subprocess.TimeoutExpired:
            pass
        finally:
            process.kill()
            code = process.wait()
        if not findings.complete:
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            reason = f"it ended with {how}{_last_line(output)}" if ended else f"no answer in {timeout:g} s"
            findings.add_failure(reason)
    return findings


def _read(lines: IO[bytes], findings: Findings, timeout: float) -> bool:
    """Read messages until the probe ends; False if none came for `timeout` seconds."""
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(lines, selectors.EVENT_READ)
        while not findings.complete:
            if not selector.select(timeout):
                return False
            some = os.read(lines.fileno(), 65536)
            if not some:
                return True
            *whole, rest = (rest + some).split(b"\n")
            for line in whole:
                findings.add(json.loads(line))
    return True


def _last_line(output: IO[bytes]) -> str:
    output.seek(0)
    lines = [line.strip() for line in output.read().decode(errors="replace").splitlines() if line.strip()]
    return f": {lines[-1][:160]}" if lines else ""
