"""The run's record: metrics.jsonl, TensorBoard events, log.txt, and what the terminal shows."""

import contextlib
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from tqdm import tqdm

from hvdgan.cli.replacing import whole_file


class Record:
    """Writes on rank 0 and does nothing on the others, so that every rank can call it.

    Args:
        run_dir: receives the files.
        is_root: whether this rank writes.
        start_step: steps done before; later records of an interrupted run are dropped, since they are computed again.
        total_steps: where the progress bar ends.
    """

    def __init__(self, run_dir: Path, *, is_root: bool, start_step: int, total_steps: int) -> None:
        self._is_root = is_root
        self._unwritten: set[str] = set()
        if not is_root:
            return
        run_dir.mkdir(parents=True, exist_ok=True)
        _drop_after(run_dir / "metrics.jsonl", start_step)
        self._jsonl = (run_dir / "metrics.jsonl").open("a", encoding="utf-8")
        # The name of a file need not be UTF-8.
        self._log = (run_dir / "log.txt").open("a", encoding="utf-8", errors="backslashreplace")
        self._events = tf.summary.create_file_writer(str(run_dir / "tensorboard"))
        self._bar = tqdm(
            total=total_steps, initial=start_step, unit="step", file=sys.stderr, dynamic_ncols=True, mininterval=0.5,
            disable=not sys.stderr.isatty(),
        )  # fmt: skip

    def say(self, text: str) -> None:
        """A line for people: on the terminal and in log.txt."""
        if not self._is_root:
            return
        with self.tolerant("log.txt"):
            self._log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
            self._log.flush()
        if self._bar.disable:
            print(text, file=sys.stderr, flush=True)
        else:
            self._bar.write(text, file=sys.stderr)

    @contextlib.contextmanager
    def tolerant(self, what: str) -> Iterator[None]:
        """A full disk must not end a training: what cannot be written is said, once, on the terminal."""
        try:
            yield
        except (OSError, tf.errors.OpError) as error:
            if what not in self._unwritten:
                print(f"warning: {what} cannot be written: {error}; training goes on", file=sys.stderr, flush=True)
            self._unwritten.add(what)

    def advance(self, stage: str) -> None:
        """One more step is done."""
        if self._is_root and not self._bar.disable:
            self._bar.set_description(stage, refresh=False)
            self._bar.update()

    def write(self, step: int, stage: str, stage_step: int, values: dict[str, float]) -> None:
        """One record of metrics.

        Args:
            step: steps done so far.
            stage: the name of the stage they are in.
            stage_step: steps of the stage done so far.
            values: by name; images_per_sec among them.
        """
        if not self._is_root:
            return
        self._append({"step": step, "stage": stage, "stage_step": stage_step, **values})
        losses = " ".join(f"{name} {value:.4g}" for name, value in values.items() if name.endswith("/loss"))
        rate = values["images_per_sec"]
        if self._bar.disable:
            left = _clock((self._bar.total - step) * values["step_seconds"])
            self.say(f"step {step}/{self._bar.total} {stage} {losses} {rate:.1f} images/s, {left} left")
        else:
            self._bar.set_postfix_str(f"{losses} {rate:.1f} images/s")

    def write_evaluation(self, step: int, stage: str, stage_step: int, values: dict[str, float]) -> None:
        """Metrics of the held-out images, after so many steps.

        Args:
            step: steps done so far.
            stage: the name of the stage they are in.
            stage_step: steps of the stage done so far.
            values: by name.
        """
        if not self._is_root:
            return
        self._append({"step": step, "stage": stage, "stage_step": stage_step, **values})
        self.say(f"step {step} held out: {' '.join(f'{name} {value:.4g}' for name, value in values.items())}")

    def _append(self, record: dict[str, Any]) -> None:
        # JSON has no NaN.
        finite = {
            name: value if not isinstance(value, float) or math.isfinite(value) else None
            for name, value in record.items()
        }
        with self.tolerant("metrics.jsonl"):
            self._jsonl.write(json.dumps(finite) + "\n")
            self._jsonl.flush()
        scalars = {name: value for name, value in record.items() if name not in ("step", "stage", "stage_step")}
        with self.tolerant("tensorboard"), self._events.as_default():
            tf.summary.experimental.write_raw_pb(_summary(scalars), record["step"])

    def close(self) -> None:
        """Finish the files."""
        if self._is_root:
            self._bar.close()
            for what, file in (("tensorboard", self._events), ("metrics.jsonl", self._jsonl), ("log.txt", self._log)):
                with self.tolerant(what):
                    file.close()


class Window:
    """Sums over the steps since the last record; metrics stay on their device until somebody asks.

    Args:
        state: what state() returned, to go on from there.
    """

    def __init__(self, state: dict[str, list[float]] | None = None) -> None:
        self._waiting: list[dict[str, tf.Tensor | float]] = []
        # A count of 0 is in checkpoints of elastic runs from when merging rounded counts down.
        self._sums = {name: (total, round(count)) for name, (total, count) in (state or {}).items() if count >= 0.5}

    def add(self, values: dict[str, tf.Tensor | float]) -> None:
        """One step's values by name; a step need not have all of them."""
        self._waiting.append(values)

    def means(self) -> dict[str, float]:
        """The mean of each name over the steps that had it."""
        return {name: total / count for name, (total, count) in sorted(self._read().items())}

    def state(self) -> dict[str, list[float]]:
        """For each name its sum and count, expressible in JSON."""
        return {name: [total, count] for name, (total, count) in self._read().items()}

    def _read(self) -> dict[str, tuple[float, int]]:
        # One by one and in order: the sums have the same bits wherever a checkpoint has read them in between.
        for values in self._waiting:
            for name, value in values.items():
                total, count = self._sums.get(name, (0.0, 0))
                self._sums[name] = total + float(value), count + 1
        self._waiting = []
        return self._sums


def merge_states(states: Sequence[dict[str, list[float]]], weights: Sequence[float]) -> dict[str, list[float]]:
    """One window's state for any rank, from those of other ranks: the means over them, over as many steps as they had.

    Args:
        states: of each rank.
        weights: of each rank, from Ranks.weights.
    """
    return {name: _merge(name, states, weights) for name in sorted({name for state in states for name in state})}


def _merge(name: str, states: Sequence[dict[str, list[float]]], weights: Sequence[float]) -> list[float]:
    having = [(weight, *state[name]) for weight, state in zip(weights, states, strict=True) if name in state]
    share = sum(weight for weight, _, _ in having)
    # The ranks count the same steps. A weighted mean of their counts would be a little less, and no whole number.
    if len({count for _, _, count in having}) == 1:
        return [sum(weight * total for weight, total, _ in having) / share, having[0][2]]
    count = max(1, round(sum(weight * steps for weight, _, steps in having) / share))
    return [count * sum(weight * total / max(steps, 1) for weight, total, steps in having) / share, count]


def _summary(scalars: dict[str, float]) -> bytes:
    """What tf.summary.scalar would write of each; all at once it takes a fourth of the time."""
    metadata = tf.compat.v1.SummaryMetadata(
        plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars"), data_class="DATA_CLASS_SCALAR"
    )
    values = [
        tf.compat.v1.Summary.Value(tag=name, tensor=tf.make_tensor_proto(value, tf.float32), metadata=metadata)
        for name, value in scalars.items()
    ]
    return tf.compat.v1.Summary(value=values).SerializeToString()


def _drop_after(path: Path, step: int) -> None:
    """Drop the records past a step, and a half-written last line, in one rename."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        record = _parse(line)
        if isinstance(record, dict) and record.get("step", step + 1) <= step:
            kept.append(line + "\n")
    with whole_file(path) as partial:
        partial.write_text("".join(kept), encoding="utf-8")


def _parse(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"
