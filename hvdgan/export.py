"""The command hvdgan export: writes a trained network for use without hvdgan."""

from hvdgan.cli import start

start.begin(__name__)

import dataclasses
import json
import re
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from hvdgan.checkpoints.files import refuse_missing
from hvdgan.cli.app import command
from hvdgan.errors import UserError
from hvdgan.files import outputs
from hvdgan.settings.types import NamedRecipe, Weights

_HELP = """Write a trained network, or what sample() computes, for use without hvdgan, in one process.

RUN is a run folder, whose newest checkpoint is used, or a checkpoint file."""

Format = Literal["keras", "savedmodel", "npz"]
_SUFFIXES: Mapping[str, Format] = {".keras": "keras", ".npz": "npz", "": "savedmodel"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request(NamedRecipe):
    """What to write; the fields are the flags."""

    network: Annotated[str | None, Parameter(name="--only")] = None
    """name of one of the recipe's networks, such as generator; default: what sample() computes, as a SavedModel"""
    out: Path
    """file to write: .keras, or .npz (all weights under their names in checkpoints); or a folder for a SavedModel"""
    format: Format | None = None
    """keras, savedmodel or npz; default: by the suffix of --out"""
    weights: Weights = "averaged"
    """averaged: moving averages of the weights, if the run has any; trained: the weights themselves"""
    units: Literal["physical", "network"] = "physical"
    """physical: inputs, conditions and samples in the units of the data (--values); network: as networks see them"""
    any_size: bool = False
    """let the .keras of a convolutional network take fields of any height and width (and depth)"""
    overwrite: bool = False
    """write over existing files"""


@command(name="export", help_text=_HELP, first=refuse_missing)
def main(run: Path, /, *, request: Annotated[Request, Parameter(name="*")]) -> None:
    form = _format(request)
    trained = load_trained(run, request.recipe)
    recipe, mapped = trained.recipe, list[str]()
    maps, physical = recipe.data.values, request.units == "physical"
    if request.network is None:
        if recipe.domains:
            networks = ", ".join(trained.state.networks)
            raise UserError(f"--out {request.out}: name a network of this recipe of domains with --only: {networks}")
        averaged = bool(trained.state.ema)
        with recipe_errors.of(recipe):
            serving = Serving(recipe, trained.nets(request.weights), in_units=physical)
            what, mapped = "sample()" if type(recipe).generate is Recipe.generate else "generate()", serving.mapped
            _write(request.out, form, serving.save, lambda path: list_maps(path, maps, mapped))
        given = ", ".join(f"{name} {_shape(each)}" for name, each in serving.inputs.items())
        written = f"{given} -> {', '.join(f'{name} {_shape(each)}' for name, each in serving.outputs.items())}"
    else:
        what, averaged = request.network, request.network in trained.state.ema
        network = _network(trained, request)
        if request.any_size:
            network = of_any_size(f"--any-size: network {request.network}", network)
        if form == "npz":
            values = {variable.path: variable.numpy() for variable in network.variables}
            written = f"{len(values)} weights"
            if maps is not None:
                written += ", and value_maps as JSON"
                values["value_maps"] = np.array(json.dumps(described(maps)))
            _write(request.out, form, lambda path: np.savez(path, **values))
        else:
            if physical and maps is not None and not recipe.data.is_pictures:
                with recipe_errors.of(recipe):
                    ends = Serving(recipe, trained.nets(request.weights), in_units=False).ends
                network, mapped = in_units(network, recipe.data, ends[request.network])
            if form == "keras":
                _refuse_foreign(network, request)
            save = network.save if form == "keras" else lambda path: network.export(path, verbose=False)
            _write(request.out, form, save, lambda path: list_maps(path, maps, mapped))
            written = _signature(network)
    print(
        f"{request.out}: {what} of {trained.checkpoint}, step {trained.step:,}, "
        f"{'averaged' if averaged and request.weights == 'averaged' else 'as trained'}: {written}"
    )
    if mapped:
        print(f"in the units of the data: {'; '.join(mapped)}")
    if maps is not None and form != "npz":
        print(f"the maps of the numbers are listed in its {MAPS}")


# Here, so that help and a wrong command line need no TensorFlow.
import keras
import numpy as np
import tensorflow as tf

from hvdgan.inference.any_size import of_any_size
from hvdgan.inference.serving import MAPS, Serving, described, in_units, list_maps
from hvdgan.inference.trained import TrainedNetworks, load_trained
from hvdgan.networks.layers import layers_of
from hvdgan.recipe import Recipe, recipe_errors


def _format(request: Request) -> Format:
    """Choose the format, and check that the output can be written."""
    out = request.out
    form = request.format or _SUFFIXES.get(out.suffix.lower())
    if form is None:
        raise UserError(f"--out {out}: expected a name that ends in .keras or .npz, or give --format")
    if request.network is None and form != "savedmodel":
        raise UserError(
            f"--out {out}: what sample() computes is written as a SavedModel alone; name a folder, or a network with "
            "--only"
        )
    if request.any_size and (request.network is None or form != "keras"):
        raise UserError(
            f"--any-size: --out {out}: expected a network, named with --only, and a name that ends in .keras"
        )
    if form == "savedmodel":
        outputs.check_new_folder(out, overwrite=request.overwrite, holds="saved_model.pb")
        return form
    if out.suffix != f".{form}":
        raise UserError(f"--out {out}: expected a name that ends in .{form}")
    outputs.check_new(out, overwrite=request.overwrite)
    return form


def _network(trained: TrainedNetworks, request: Request) -> keras.Model:
    """The network, with the averages assigned to it if --weights asks for them."""
    networks = {**trained.state.networks, **trained.grown, **trained.state.frozen}
    if request.network not in networks:
        raise UserError(f"--only {request.network}: no such network in this run; expected one of {', '.join(networks)}")
    if request.weights == "averaged":
        for variable, average in trained.state.sampling_values().get(request.network, ()):
            variable.assign(average)
    return networks[request.network]


def _refuse_foreign(network: keras.Model, request: Request) -> None:
    """Refuse a network that Keras alone could not load: with classes or Python functions that are not its own."""
    for layer in (network, *layers_of(network)):
        functions = [each for each in vars(layer).values() if isinstance(each, types.FunctionType)]
        modules = [each.__module__.partition(".")[0] for each in (layer, *functions)]
        if {*modules} == {"keras"} and not isinstance(layer, keras.Model):
            config = json.dumps(keras.saving.serialize_keras_object(layer), default=str)
            modules += re.findall(r'"module": "(\w+)', config)
        if {*modules} != {"keras"}:
            raise UserError(
                f"--out {request.out}: {layer.name} ({type(layer).__name__}) is more than Keras alone can load; name a "
                "folder: a SavedModel needs no code"
            )


def _write(out: Path, form: Format, *saves: Callable[[Path], Any]) -> None:
    def save(path: Path) -> None:
        for name in ("assets", "variables") if form == "savedmodel" else ():  # TensorFlow's would not heed the umask
            (path / name).mkdir(parents=True)
        try:
            for each in saves:
                each(path)
        except tf.errors.OpError as error:
            raise OSError(error.message) from error
        except ValueError as error:  # Keras does not know the network's inputs
            words = " ".join(str(error).split())
            hint = "; leave out --only for what sample() computes" if form == "savedmodel" else ""
            raise UserError(f"--out {out}: {words}{hint}") from error

    (outputs.write_folder if form == "savedmodel" else outputs.write)(out, save)


def _signature(network: keras.Model) -> str:
    """Format the inputs and outputs with their shapes."""
    if not getattr(network, "inputs", None):  # a subclass of keras.Model in the recipe
        return "inputs as its SavedModel's signature says"
    if isinstance(network, keras.Sequential):
        outputs = {network.layers[-1].name: network.outputs[0]}
    elif isinstance(network.output, Mapping):
        outputs = dict(network.output)
    else:
        outputs = dict(zip(network.output_names, network.outputs, strict=True))
    inputs = ", ".join(f"{tensor.name} {_shape(tensor)}" for tensor in network.inputs)
    return f"{inputs} -> {', '.join(f'{name} {_shape(tensor)}' for name, tensor in outputs.items())}"


def _shape(tensor: Any) -> str:
    sizes = ["B", *("any" if size is None else str(size) for size in tensor.shape[1:])]
    name = getattr(tensor.dtype, "name", tensor.dtype)
    kind = "" if name == "float32" else f" {name}"
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''}){kind}"


if __name__ == "__main__":
    sys.exit(main())
