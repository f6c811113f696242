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
from hvdgan.data.batches import Batches
from hvdgan.launching.launched import launched
from hvdgan.training.loop import Loop
from hvdgan.training.step import StageStep

seen: dict[str, Any] = {"batches": [], "steps": [], "operations": [], "variables": {}}
following, call, work = Batches.__next__, StageStep.__call__, Loop.do_steps


def batch_of(self: Batches) -> dict[str, tf.Tensor]:
    batch = following(self)
    seen["batches"].append({"device": batch["images"].device, "dtype": batch["images"].dtype.name})
    return batch


def step_of(self: StageStep, *arguments: Any) -> Any:
    images = next(each["images"] for each in arguments if isinstance(each, dict))
    seen["steps"].append(images.device)
    if len(seen["steps"]) > 1:
        return call(self, *arguments)
    # TensorFlow collects the graph of a function when it runs for the first time.
    context.enable_graph_collection()
    context.enable_run_metadata()
    results = call(self, *arguments)
    for each in tf.nest.flatten(results):
        each.numpy()  # the record is whole when the step has ended
    # The operations as TensorFlow has placed and optimised them.
    graphs = [graph for each in context.export_run_metadata().function_graphs for graph in each.partition_graphs]
    seen["operations"] = [
        {"type": node.op, "device": node.device, "dtype": tf.as_dtype(node.attr["T"].type).name}
        for graph in graphs
        for node in graph.node
        if node.attr["T"].type
    ]
    context.disable_run_metadata()
    context.disable_graph_collection()
    return results


def steps_of(self: Loop, *arguments: Any) -> Any:
    reached = work(self, *arguments)
    for name, variable in self._run.state.tensors().items():
        seen["variables"][name] = {"device": variable.value.device, "dtype": variable.value.dtype.name}
    return reached


if __name__ == "__main__":
    Batches.__next__, StageStep.__call__, Loop.do_steps = batch_of, step_of, steps_of
    code = train.main(sys.argv[2:])
    gpus = tf.config.get_visible_devices("GPU")
    seen["visible"] = [gpu.name for gpu in gpus]
    seen["growth"] = [bool(tf.config.experimental.get_memory_growth(gpu)) for gpu in gpus]
    Path(sys.argv[1], f"{launched()[2]}.json").write_text(json.dumps(seen))
    sys.exit(code)
