"""Runs hvdgan.train, and writes where its batches, variables and operations live; tests/gpu starts it.

python -m observed FOLDER [arguments of hvdgan.train]; each rank writes FOLDER/RANK.json.
"""

import json
import sys
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

from hvdgan import train
from hvdgan.cli.launcher import launched
from hvdgan.data.batches import Batches
from hvdgan.training import session
from hvdgan.training.step import StageStep


def main(folder: Path, arguments: list[str]) -> int:
    """Train with observers around the batches, the step and the run."""
    seen: dict[str, Any] = {"batches": [], "steps": [], "operations": [], "variables": {}}
    _observe_batches(seen)
    _observe_steps(seen)
    _observe_variables(seen)
    code = train.main(arguments)
    gpus = tf.config.get_visible_devices("GPU")
    seen["visible"] = [gpu.name for gpu in gpus]
    seen["growth"] = [bool(tf.config.experimental.get_memory_growth(gpu)) for gpu in gpus]
    (folder / f"{launched()[2]}.json").write_text(json.dumps(seen))
    return code


def _observe_batches(seen: dict[str, Any]) -> None:
    following = Batches.__next__

    def observed(self: Batches) -> dict[str, tf.Tensor]:
        batch = following(self)
        seen["batches"].append({"device": batch["images"].device, "dtype": batch["images"].dtype.name})
        return batch

    Batches.__next__ = observed


def _observe_steps(seen: dict[str, Any]) -> None:
    call = StageStep.__call__

    def observed(self: StageStep, *arguments: Any) -> Any:
        is_first = not seen["steps"]
        images = next(each["images"] for each in arguments if isinstance(each, dict))
        seen["steps"].append(images.device)
        if not is_first:
            return call(self, *arguments)
        # TensorFlow collects the graph of a function when it runs for the first time.
        context.enable_graph_collection()
        context.enable_run_metadata()
        results = call(self, *arguments)
        for each in tf.nest.flatten(results):
            each.numpy()  # the record is whole when the step has ended
        seen["operations"] = _operations(context.export_run_metadata())
        context.disable_run_metadata()
        context.disable_graph_collection()
        return results

    StageStep.__call__ = observed


def _operations(record: Any) -> list[dict[str, Any]]:
    """The operations of a recorded step as TensorFlow has placed and optimised them: type, device, type of numbers."""
    graphs = [graph for each in record.function_graphs for graph in each.partition_graphs]
    return [
        {"type": node.op, "device": node.device, "dtype": tf.as_dtype(node.attr["T"].type).name}
        for graph in graphs
        for node in graph.node
        if node.attr["T"].type
    ]


def _observe_variables(seen: dict[str, Any]) -> None:
    work = session.train

    def observed(run: Any, *arguments: Any, **more: Any) -> Any:
        reached = work(run, *arguments, **more)
        for name, variable in run.state.tensors().items():
            seen["variables"][name] = {"device": variable.value.device, "dtype": variable.value.dtype.name}
        return reached

    session.train = observed


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
