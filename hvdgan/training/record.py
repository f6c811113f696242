"""Writes the run's record: metrics.jsonl, events.jsonl and log.txt, and what its loggers keep."""

import contextlib
import datetime
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image
from tqdm import tqdm

from hvdgan.files.in_place import in_place
from hvdgan.files.replacing import whole_file
from hvdgan.runs import events, metrics
from hvdgan.runs.events import Caution, Evaluation, Event
from hvdgan.runs.folder import Folder
from hvdgan.training.loggers import LoggerChoice, Loggers

_WIDE = 110
"""columns of a terminal that has room for names"""


class Record:
    """The record of a run. Only rank 0 writes it; on the other ranks each method does nothing."""

    def __init__(self, run_dir: Path, *, is_root: bool, start_step: int, total_steps: int) -> None:
        self._is_root, self._run_dir, self._start_step = is_root, run_dir, start_step
        self._unwritten: set[str] = set()
        self._loggers: Loggers | None = None
        if is_root:
            run_dir.mkdir(parents=True, exist_ok=True)
            self._repeated = _drop_after(run_dir, start_step)
            # The name of a file, which a line may hold, need not be UTF-8.
            self._files = {
                name: open(run_dir / name, "a", encoding="utf-8", errors="backslashreplace", opener=in_place)  # noqa: SIM115
                for name in (metrics.FILE, events.FILE, events.LOG)
            }
            self._bar = tqdm(
                total=total_steps, initial=start_step, desc="start", file=sys.stderr, disable=not sys.stderr.isatty(),
                bar_format="{desc} {n_fmt}/{total_fmt} {percentage:.0f}% {remaining} left{postfix} {bar}",
                dynamic_ncols=True, mininterval=0.5, leave=False,
            )  # fmt: skip

    def open_loggers(
        self, choices: Sequence[LoggerChoice], settings: Mapping[str, Any], stop: Callable[[str], None]
    ) -> None:
        """Open the loggers of a run that has steps to do; they may stop it, with a reason."""
        if self._is_root:
            self._loggers = Loggers(
                choices, self._run_dir, self._start_step, self._repeated, settings, tell=self.tell, stop=stop
            )

    def tell(self, event: Event) -> None:
        """Write an event to events.jsonl, and its line to log.txt and, unless it need not be shown, to the terminal."""
        self.write_event(event)
        self._log(event.line, is_shown=event.is_shown)

    def say(self, text: str) -> None:
        """Log a line, on the terminal and in log.txt; one that begins with `warning: ` is an event."""
        if text.startswith("warning: "):
            self.tell(Caution(text=text.removeprefix("warning: ")))
        else:
            self._log(text)

    def write_event(self, event: Event) -> None:
        """Write an event to events.jsonl alone."""
        self._append(events.FILE, events.as_json(event))

    def _log(self, text: str, *, is_shown: bool = True) -> None:
        """Write a line to log.txt and, if it is shown, to the terminal."""
        self._append(events.LOG, events.dated(text))
        if is_shown and self._is_root:
            if self._bar.disable:
                print(text, file=sys.stderr, flush=True)
            else:
                self._bar.write(text, file=sys.stderr)
            failure = getattr(sys.stderr, "failure", None)
            if failure and "stderr" not in self._unwritten:
                self._unwritten.add("stderr")
                self._warn(f"standard error cannot be written: {failure}; the run continues")

    def _append(self, name: str, text: str) -> None:
        """Append a text to a file of the run."""
        if self._is_root:
            with self.tolerant(name):
                self._files[name].write(text)
                self._files[name].flush()

    @contextlib.contextmanager
    def tolerant(self, what: str, *kinds: type[Exception]) -> Iterator[None]:
        """Let the run continue after a failure to write; the first one of `what` is a warning."""
        try:
            yield
        except (OSError, tf.errors.OpError, *kinds) as error:
            if what not in self._unwritten:
                self._unwritten.add(what)
                found = error if isinstance(error, OSError) else repr(error)
                text = f"{what} cannot be written: {found}; the run continues"
                print(f"warning: {text}", file=sys.stderr, flush=True)
                self._warn(text)

    def advance(self, stage: str) -> None:
        """Note that one more step of this stage is done."""
        if self._is_root:
            self._bar.set_description_str(stage, refresh=False)
            self._bar.update()

    def write(self, step: int, stage: str, stage_step: int, values: dict[str, float]) -> None:
        """Write one record of training metrics."""
        if self._is_root:
            self._write_metrics({"step": step, "stage": stage, "stage_step": stage_step, **values})
            losses, speed = {n: v for n, v in values.items() if n.endswith("/loss")}, values["images_per_sec"]
            if not self._bar.disable:  # at 80 columns the line has room for beginnings of names
                most = None if os.get_terminal_size(sys.stderr.fileno()).columns >= _WIDE else 4
                short = " ".join(f"{name.removesuffix('/loss')[:most]} {value:.3g}" for name, value in losses.items())
                self._bar.set_postfix_str(f"{speed:.1f} images/s {short}")
            left = datetime.timedelta(seconds=int((self._bar.total - step) * values["step_seconds"]))
            named = " ".join(f"{name} {value:.4g}" for name, value in losses.items())
            line = f"step {step}/{self._bar.total} {stage} {named} {speed:.1f} images/s, {left} left"
            self._log(line, is_shown=bool(self._bar.disable))

    def write_evaluation(self, step: int, stage: str, stage_step: int, values: dict[str, float], what: str) -> None:
        """Write one record of the metrics of an evaluation."""
        if self._is_root:
            self._write_metrics({"step": step, "stage": stage, "stage_step": stage_step, **values})
            self.tell(Evaluation(step=step, what=what, values=_finite(values)))

    def _write_metrics(self, record: dict[str, Any]) -> None:
        self._append(metrics.FILE, json.dumps(_finite(record)) + "\n")
        if self._loggers:
            self._loggers.scalars(record["step"], _scalars(record))

    def picture(self, step: int, name: str, path: Path, *, repeated: bool) -> None:
        """Give a picture in a file to the loggers; `repeated`: an earlier start of the run has logged it."""
        if self._loggers:
            with Image.open(path) as image:
                self._loggers.pictures(step, {name: np.asarray(image.convert("RGB"))}, repeated=repeated)

    def close(self) -> None:
        """Close the loggers and the files."""
        if self._is_root:
            self._bar.close()
            if self._loggers:
                self._loggers.close()
            for name, file in self._files.items():
                with self.tolerant(name):
                    file.close()

    def _warn(self, text: str) -> None:
        """Warn in the files alone."""
        self.write_event(Caution(text=text))
        self._log(f"warning: {text}", is_shown=False)


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """The values with None for numbers that JSON has not."""
    return {
        name: value if not isinstance(value, float) or math.isfinite(value) else None for name, value in values.items()
    }


def _scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a record, without its place."""
    return {name: value for name, value in record.items() if name not in ("step", "stage", "stage_step")}


def _drop_after(run_dir: Path, step: int) -> dict[int, set[str]]:
    """Drop the records after a step, and damaged lines; returns the names of the numbers by their steps."""
    dropped: dict[int, set[str]] = {}
    with whole_file(run_dir / metrics.FILE) as partial, partial.open("w", encoding="utf-8") as file:
        for record in Folder(run_dir).records(metrics.FILE):
            if isinstance(at := record.get("step"), int) and at <= step:
                file.write(json.dumps(record) + "\n")
            elif isinstance(at, int):
                dropped.setdefault(at, set()).update(_scalars(record))
    return dropped
