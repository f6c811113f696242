"""The loggers that hvdgan brings: TensorBoard, and adapters of W&B and MLflow.

They write to the run folder and send nothing, unless the environment says so: WANDB_MODE=online or MLFLOW_TRACKING_URI.
trackers.json in the run folder has the name that the run has in each, so that a resumed run continues there.
"""

import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from hvdgan.files.outputs import write_json

_PROJECT = "hvdgan"
_ONE_AT_A_TIME = threading.Lock()
_SCALAR = tf.make_tensor_proto(0.0, tf.float32)
_METADATA = tf.compat.v1.SummaryMetadata(
    plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars"), data_class="DATA_CLASS_SCALAR"
)


class TensorBoard:
    """Event files in the folder tensorboard; the settings are hparams."""

    def __init__(self, run_dir: Path, step: int) -> None:
        folder = run_dir / "tensorboard"
        if folder.exists():
            _purge_after(str(folder), step)
        folder.mkdir(parents=True, exist_ok=True)  # TensorFlow would not heed the umask
        self._writer = tf.summary.create_file_writer(str(folder))

    def settings(self, values: Mapping[str, Any]) -> None:
        from tensorboard.plugins.hparams import api

        plain = {
            name: each if isinstance(each, bool | int | float | str) else json.dumps(each)
            for name, each in values.items()
        }
        with self._writer.as_default():
            api.hparams(plain)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        with self._writer.as_default():
            tf.summary.experimental.write_raw_pb(_summary(values), step)

    def pictures(self, step: int, values: Mapping[str, np.ndarray]) -> None:
        with self._writer.as_default():
            for name, picture in values.items():
                tf.summary.image(name, picture[None], step)

    def close(self) -> None:
        self._writer.close()


def _summary(scalars: Mapping[str, float]) -> bytes:
    """Serialise what tf.summary.scalar would write of each scalar; one call for all is over four times as fast."""
    values = [tf.compat.v1.Summary.Value(tag=name, tensor=_SCALAR, metadata=_METADATA) for name in scalars]
    for value, scalar in zip(values, scalars.values(), strict=True):
        value.tensor.float_val[0] = scalar
    return tf.compat.v1.Summary(value=values).SerializeToString()


def _purge_after(folder: str, step: int) -> None:
    """Let TensorBoard drop the events after a step, which earlier files of the folder hold."""
    with tf.Graph().as_default():  # the writer of TensorFlow 1, the only one of this event, refuses eager execution
        writer = tf.compat.v1.summary.FileWriter(folder)
        start = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
        for _ in range(2):  # the first start of a folder purges nothing
            writer.add_session_log(start, step + 1)
        writer.close()


class WeightsAndBiases:
    """A run of W&B, offline in the folder wandb unless WANDB_MODE says otherwise."""

    def __init__(self, run_dir: Path, step: int) -> None:
        import wandb

        self._library = wandb
        self._run = wandb.init(
            dir=str(run_dir),
            mode=os.environ.get("WANDB_MODE", "offline"),
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            id=_name_of_run(run_dir, "wandb", lambda: uuid.uuid4().hex[:8]),
            name=os.environ.get("WANDB_NAME", run_dir.name),
            resume="allow",
            settings=wandb.Settings(console="off"),
        )
        # W&B's own count of steps refuses a picture that is ready after the numbers of a later step.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def settings(self, values: Mapping[str, Any]) -> None:
        self._run.config.update(values, allow_val_change=True)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def pictures(self, step: int, values: Mapping[str, np.ndarray]) -> None:
        self._run.log({"step": step, **{name: self._library.Image(picture) for name, picture in values.items()}})

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """A run of MLflow, in mlflow.db and mlartifacts of the run folder unless MLFLOW_TRACKING_URI says otherwise."""

    _BATCH = 100  # parameters that MLflow takes at once

    def __init__(self, run_dir: Path, step: int) -> None:
        from mlflow import MlflowClient

        given = os.environ.get("MLFLOW_TRACKING_URI")
        self._client = MlflowClient(tracking_uri=given or f"sqlite:///{run_dir.absolute() / 'mlflow.db'}")
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT)
        artifacts = None if given else (run_dir.absolute() / "mlartifacts").as_uri()

        def begin() -> str:
            found = self._client.get_experiment_by_name(experiment)
            number = found.experiment_id if found else self._client.create_experiment(experiment, artifacts)
            return str(self._client.create_run(number, run_name=run_dir.name).info.run_id)

        self._run = _name_of_run(run_dir, "mlflow", begin)

    def settings(self, values: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        known = self._client.get_run(self._run).data.params  # which MLflow does not let anyone change
        new = [Param(name, str(value)) for name, value in values.items() if name not in known]
        for first in range(0, len(new), self._BATCH):
            self._client.log_batch(self._run, params=new[first : first + self._BATCH])

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(self._run, [Metric(name, float(each), now, step) for name, each in values.items()])

    def pictures(self, step: int, values: Mapping[str, np.ndarray]) -> None:
        for name, picture in values.items():
            self._client.log_image(self._run, picture, key=name, step=step)

    def close(self) -> None:
        self._client.set_terminated(self._run)


def _name_of_run(run_dir: Path, tracker: str, make: Callable[[], str]) -> str:
    """The name of the run in a tracker: that of trackers.json, or a new one, which is kept there."""
    path = run_dir / "trackers.json"
    with _ONE_AT_A_TIME:
        try:
            names = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # none yet, or damaged
            names = {}
        if tracker not in names:
            names[tracker] = make()
            write_json(path, names)
    return str(names[tracker])
