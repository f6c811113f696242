"""The command python -m hvdgan.export: writes a trained network for use without hvdgan."""

from hvdgan.cli import start

start.begin(__name__)

import dataclasses
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import keras
import numpy as np
import tensorflow as tf
from cyclopts import Parameter

from hvdgan.cli.app import command
from hvdgan.cli.errors import RunError, UserError
from hvdgan.cli.files import outputs
from hvdgan.inference.physical import NAME, described, list_maps, physical
from hvdgan.inference.serving import Serving
from hvdgan.inference.trained import Changed, TrainedNetworks, Weights, load_trained
from hvdgan.networks.standard_keras import foreign, plain
from hvdgan.recipe import Recipe, mistakes
from hvdgan.values.sample_values import SampleValues

_HELP = """Write a trained network, or what sample() computes, for use without hvdgan, in one process.

RUN is a run folder, whose newest checkpoint is used, or a checkpoint folder."""

Format = Literal["keras", "savedmodel", "npz"]
_SUFFIXES: Mapping[str, Format] = {".keras": "keras", ".npz": "npz", "": "savedmodel"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What to write; the fields are the flags."""

    network: str | None = None
    """name of one of the recipe's networks, such as generator; default: what sample() computes, as a SavedModel"""
    out: Path
    """file to write, .keras or .npz (all weights by their names in checkpoints), or a folder for a SavedModel"""
    format: Format | None = None
    """keras, savedmodel or npz; default: by the suffix of --out"""
    weights: Weights = "averaged"
    """averaged: moving averages of the weights, if the run has any; trained: the weights themselves"""
    units: Literal["physical", "network"] = "physical"
    """physical: inputs, conditions and samples in the units of the data (--values); network: as networks see them"""
    overwrite: bool = False
    """write over existing files"""


@command(name="export", help_text=_HELP)
def main(run: Path, /, *, request: Annotated[Request, Parameter(name="*")]) -> None:
    form = _format(request)
    trained = load_trained(run)
    if request.network is None:
        _export_samples(trained, request)
        return
    network = _network(trained, request)
    maps, mapped = trained.recipe.data.values, list[str]()
    if form == "npz":
        values = {variable.path: variable.numpy() for variable in network.variables}
        written = f"{len(values)} weights"
        if maps is not None:
            written += ", and value_maps as JSON"
            values["value_maps"] = np.array(json.dumps(described(maps)))
        outputs.write(request.out, lambda path: np.savez(path, **values))
    elif form == "keras":
        network, mapped = _in_units(trained, network, request)
        network = _loadable(network, request)
        outputs.write(request.out, lambda path: _save_keras(network, path, trained, mapped))
        written = _signature(network)
    else:
        network, mapped = _in_units(trained, network, request)
        outputs.write_folder(request.out, lambda path: _save_model(network, path, trained, mapped))
        written = _signature(network)
    averaged = request.weights == "averaged" and request.network in trained.state.ema
    print(
        f"{request.out}: {request.network} of {trained.checkpoint}, step {trained.step:,}, "
        f"{'averaged' if averaged else 'as trained'}: {written}"
    )
    if mapped:
        print(f"in the units of the data: {'; '.join(mapped)}")
    if maps is not None and form != "npz":
        print(f"the maps of the numbers are listed in its {NAME}")


def _export_samples(trained: TrainedNetworks, request: Request) -> None:
    recipe = trained.recipe
    with mistakes.of(recipe):
        serving = Serving(recipe, trained.nets(request.weights), in_units=request.units == "physical")
        outputs.write_folder(request.out, lambda path: _save(serving.save, path, recipe.data.values, serving.mapped))
    given = ", ".join(f"{name} {_shape(each)}" for name, each in serving.inputs.items())
    own = "sample()" if type(recipe).generate is Recipe.generate else "generate()"
    weights = "averaged" if request.weights == "averaged" and trained.state.ema else "as trained"
    print(
        f"{request.out}: {own} of {trained.checkpoint}, step {trained.step:,}, {weights}: {given} -> samples "
        f"{_shape(serving.samples)}"
    )
    if serving.mapped:
        print(f"in the units of the data: {'; '.join(serving.mapped)}")


def _format(request: Request) -> Format:
    """Choose the format, and check that the output can be written."""
    out = request.out
    form = request.format or _SUFFIXES.get(out.suffix.lower())
    if form is None:
        raise UserError(f"--out {out}: expected a name that ends in .keras or .npz, or give --format")
    if request.network is None and form != "savedmodel":
        raise UserError(
            f"--out {out}: what sample() computes is written as a SavedModel alone; name a folder, or a network with "
            "--network"
        )
    if form == "savedmodel":
        outputs.check_new_folder(out, overwrite=request.overwrite, holds="saved_model.pb")
        return form
    if out.suffix != f".{form}":
        raise UserError(f"--out {out}: expected a name that ends in .{form}")
    outputs.check_new(out, overwrite=request.overwrite)
    return form


def _network(trained: TrainedNetworks, request: Request) -> keras.Model:
    """Return the network, with the averages assigned to it if --weights asks for them."""
    networks = {**trained.state.networks, **trained.state.frozen}
    if request.network not in networks:
        raise UserError(
            f"--network {request.network}: no such network in this run; expected one of {', '.join(networks)}"
        )
    if request.weights == "averaged":
        for variable, average in trained.state.sampling_values().get(request.network, ()):
            variable.assign(average)
    network = networks[request.network]
    return network() if isinstance(network, Changed) else network  # which refuses


def _in_units(trained: TrainedNetworks, network: keras.Model, request: Request) -> tuple[keras.Model, list[str]]:
    """The network of standard layers in the units that --units asks for, and what of it was changed for that."""
    spec = trained.recipe.data
    if request.units == "network" or spec.values is None or spec.is_pictures:
        return plain(network), []
    with mistakes.of(trained.recipe):
        ends = Serving(trained.recipe, trained.nets(request.weights), in_units=False, count=1).ends
    assert request.network is not None
    return physical(plain(network), spec, ends[request.network])


def _loadable(network: keras.Model, request: Request) -> keras.Model:
    if found := foreign(network):
        raise UserError(
            f"--out {request.out}: {found}, which Keras alone cannot load; name a folder: a SavedModel needs neither"
        )
    # A network made from its config, as Keras loads it. Otherwise the file would hold memory addresses, by which Keras
    # records that layers share a dtype policy, and would change with every load and save.
    loaded = keras.Model.from_config(network.get_config())
    loaded.set_weights(network.get_weights())
    return loaded


def _save_keras(network: keras.Model, path: Path, trained: TrainedNetworks, mapped: Sequence[str]) -> None:
    network.save(path)
    list_maps(path, trained.recipe.data.values, mapped)


def _save_model(network: keras.Model, path: Path, trained: TrainedNetworks, mapped: Sequence[str]) -> None:
    try:
        _save(lambda path: network.export(path, verbose=False), path, trained.recipe.data.values, mapped)
    except ValueError as error:  # Keras does not know its inputs
        raise RunError(f"network {network.name} cannot be exported: {' '.join(str(error).split())}") from error


def _save(save: Callable[[Path], Any], path: Path, values: SampleValues | None, mapped: Sequence[str]) -> None:
    try:
        save(path)
        list_maps(path, values, mapped)
    except tf.errors.OpError as error:
        raise OSError(error.message) from error


def _signature(network: keras.Model) -> str:
    """Format the inputs and outputs with their shapes."""
    if not getattr(network, "inputs", None):  # a subclass of keras.Model in the recipe
        return "inputs as its SavedModel's signature says"
    outputs = network.output if isinstance(network.output, Mapping) else None
    names = list(outputs) if outputs else network.output_names
    tensors = list(outputs.values()) if outputs else network.outputs
    inputs = ", ".join(f"{tensor.name} {_shape(tensor)}" for tensor in network.inputs)
    return f"{inputs} -> {', '.join(f'{name} {_shape(tensor)}' for name, tensor in zip(names, tensors, strict=True))}"


def _shape(tensor: Any) -> str:
    sizes = ["B", *("any" if size is None else str(size) for size in tensor.shape[1:])]
    name = getattr(tensor.dtype, "name", tensor.dtype)
    kind = "" if name == "float32" else f" {name}"
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''}){kind}"


if __name__ == "__main__":
    sys.exit(main())
