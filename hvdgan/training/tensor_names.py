"""Gives each variable of a run the name that a checkpoint saves it under."""

import collections
from collections.abc import Iterable, Mapping, Sequence

import keras

from hvdgan.recipe.mistakes import Mistake
from hvdgan.training.loss_scale import LossScale
from hvdgan.training.statistics import averaged_variables


def named_tensors(
    networks: Mapping[str, keras.Model],
    optimizers: Mapping[str, keras.optimizers.Optimizer],
    ema: Mapping[str, Sequence[keras.Variable]],
    loss_scales: Mapping[str, LossScale],
) -> dict[str, keras.Variable]:
    """Name all variables of a run."""
    named: dict[str, keras.Variable] = {}
    for name, network in networks.items():
        _add(named, f"networks/{name}", ((variable.path, variable) for variable in network.variables))
        _add(named, f"optimizers/{name}", _slots(optimizers[name], network))
    for name, averages in ema.items():
        variables = averaged_variables(networks[name])
        _add(named, f"ema/{name}", ((v.path, average) for v, average in zip(variables, averages, strict=True)))
    for name, scale in loss_scales.items():
        _add(named, f"loss_scales/{name}", [("value", scale.value), ("held", scale.held)])
    return named


def _slots(optimizer: keras.optimizers.Optimizer, network: keras.Model) -> Iterable[tuple[str, keras.Variable]]:
    """Name an optimizer's slots <variable path>/<slot>, and its scalars by their own names.

    Keras names a slot after the path of its variable, with "_" instead of "/". Adafactor has several of one name, which
    are numbered.
    """
    seen: collections.Counter[str] = collections.Counter()
    prefixes = {variable.path.replace("/", "_") + "_": variable.path for variable in network.trainable_variables}
    for variable in optimizer.variables:
        name = variable.path.rpartition("/")[2]
        # The longest prefix is the right one: conv_1_kernel_momentum also begins with the name of a variable conv_1.
        prefix = max((prefix for prefix in prefixes if name.startswith(prefix)), key=len, default="")
        name = f"{prefixes[prefix]}/{name[len(prefix) :]}" if prefix else name
        seen[name] += 1
        yield (f"{name}_{seen[name]}" if seen[name] > 1 else name), variable


def _add(named: dict[str, keras.Variable], prefix: str, variables: Iterable[tuple[str, keras.Variable]]) -> None:
    for path, variable in variables:
        name = f"{prefix}/{path}"
        if name in named:
            raise Mistake(f"two variables are named {name}; give the layers of the network names of their own")
        named[name] = variable
