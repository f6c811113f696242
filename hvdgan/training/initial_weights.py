"""What networks begin with, if --init-from says so: the values of another run, or the weights of a file."""

import itertools
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from hvdgan.checkpoints import files, foreign_weights
from hvdgan.checkpoints.foreign_weights import Tensors
from hvdgan.checkpoints.tensor_names import EMA, NETWORKS, kind_of, owner_of
from hvdgan.errors import RunError, UserError, in_one_line
from hvdgan.networks.layers import is_float, is_seed, names_in_files
from hvdgan.recipe import Recipe
from hvdgan.settings.config import Config
from hvdgan.settings.own_code import sha256_of
from hvdgan.training.train_state import TrainState

Facts = dict[str, dict[str, str]]
"""for each network the file, or the checkpoint, and its SHA-256 in hex, and those of the map"""


class _File(NamedTuple):
    """A file that a flag names, and the SHA-256 that it must have; any if that is empty."""

    path: Path
    pin: str

    @staticmethod
    def named(given: str) -> "_File":
        path, _, pin = given.partition("#sha256=")
        return _File(Path(path), pin)

    def digest(self, where: str) -> str:
        """The SHA-256 of the file; a UserError, which begins with `where`, if it is another one."""
        try:
            if not self.path.is_file():  # a device or a pipe may have no end
                raise FileNotFoundError("there is no such file")
            found = sha256_of(self.path)
        except OSError as error:
            raise UserError(f"{where}: cannot be read: {in_one_line(error)}") from error
        if self.pin not in ("", found):
            raise UserError(f"{where}: its SHA-256 is {found}; restore the file, or leave #sha256= out")
        return found


def take(config: Config, state: TrainState, recipe: Recipe) -> tuple[list[str], Facts]:
    """Give networks of a new run, and their averages, the values that the command names; returns lines, and facts."""
    given = _files(config)
    if config.init_networks and (given or config.init_from is None):
        raise UserError(f"--init-networks {','.join(config.init_networks)}: name a run with --init-from")
    if not given:
        return ([], {}) if config.init_from is None else _take_networks(config, state, recipe)
    lines, facts = _assign(config, state, given)
    changed = state.sharing.relatives(given)
    state.begin_averages(changed & state.ema.keys())
    state.reset_optimizers(recipe, changed)  # some keep a copy of the weights, as ScheduleFreeAdamW
    return lines, facts


def fill_frozen(config: Config, state: TrainState) -> None:
    """Give frozen networks, which no checkpoint holds, the weights of the files that the command names."""
    given = {name: file for name, file in _files(config).items() if name in state.frozen}
    if given and config.init_map != "print":
        _assign(config, state, given)


def proposal(config: Config, state: TrainState) -> Iterator[str]:
    """Write a map for --init-map, in lines."""
    for name, file in _files(config).items():
        yield from foreign_weights.proposed(*_opened(state, name, file), name)


def as_settings(initial: Facts) -> dict[str, Any]:
    """The settings with which another run begins with the same values, or is refused if a file has changed."""
    first = next(iter(initial.values()), {})
    if "checkpoint" in first:
        return {"init_from": f"{first['checkpoint']}#sha256={first['sha256']}", "init_networks": [*initial]}
    given = ",".join(f"{name}={fact['file']}#sha256={fact['sha256']}" for name, fact in initial.items())
    by = f"{first['map']}#sha256={first['sha256_of_map']}" if "map" in first else None
    return {"init_from": given, "init_map": by} if given else {}


def _files(config: Config) -> dict[str, _File]:
    """The files of weights that --init-from names, by network; none if it names a run."""
    named = re.split(r",(?=[^/=,]+=)", config.init_from or "")
    if not re.match("[^/=,]+=", named[0]) or os.path.exists(_File.named(named[0]).path):
        if config.init_map:
            raise UserError(f"--init-map {config.init_map}: name weights with --init-from NETWORK=FILE")
        return {}
    return {name: _File.named(file) for name, _, file in (each.partition("=") for each in named)}


def _assign(config: Config, state: TrainState, given: Mapping[str, _File]) -> tuple[list[str], Facts]:
    """Give networks the values of files; returns a line for each, and facts."""
    facts, lines, rules, of_map = Facts(), list[str](), {}, {}
    if config.init_map:
        file, where = _File.named(config.init_map), f"--init-map {config.init_map}"
        of_map = {"map": str(file.path), "sha256_of_map": file.digest(where)}
        rules = foreign_weights.read_rules(file.path)
        if unknown := sorted(rules.keys() - state.networks.keys() - state.frozen.keys()):
            raise UserError(f"{where}: [{unknown[0]}] is no network of this run, which has {_names(state)}")
    for name, file in given.items():
        where = f"--init-from {name}={file.path}"
        facts[name] = {"file": str(file.path), "sha256": file.digest(where), **of_map}
        tensors, shapes, network = *_opened(state, name, file), state.networks.get(name) or state.frozen[name]
        found = foreign_weights.matched(tensors, shapes, rules.get(name, ()), where)
        for variable in (each for each in network.variables if each.path in found):
            value = found[variable.path]
            if is_float(variable) != keras.backend.is_float_dtype(str(value.dtype)):
                raise UserError(
                    f"{where}: the tensor of {variable.path} holds {value.dtype}, and the variable {variable.dtype}; "
                    "expected weights that are not quantized: convert them, or name another tensor in --init-map"
                )
            variable.assign(value.astype(variable.dtype))
        of_file = ", ".join(f"{fact} {value}" for fact, value in facts[name].items())
        lines.append(f"{name}: {len(found)} tensors taken from {of_file}")
    return lines, facts


def _opened(state: TrainState, name: str, file: _File) -> tuple[Tensors, dict[str, tuple[int, ...]]]:
    """The tensors of a file for a network, and the shapes of the network's variables, by their names."""
    where, networks = f"--init-from {name}={file.path}", {**state.networks, **state.frozen}
    if name not in networks:
        raise UserError(f"{where}: {name} is no network of this run, which has {_names(state)}")
    of_keras = {key: variable.path for key, variable in names_in_files(networks[name]).items()}
    tensors = {of_keras.get(each, each): value for each, value in foreign_weights.read(file.path, where).items()}
    return tensors, {each.path: tuple(each.shape) for each in networks[name].variables if not is_seed(each)}


def _names(state: TrainState) -> str:
    return ", ".join([*state.networks, *state.frozen])


def _take_networks(config: Config, state: TrainState, recipe: Recipe) -> tuple[list[str], Facts]:
    """Give networks, and their averages, the values of another run's."""
    given = _File.named(config.init_from or "")
    where, names = f"--init-from {given.path}", config.init_networks
    try:
        source = files.find(given.path)
        manifest = files.read_manifest(source)
    except RunError as error:
        raise UserError(f"--init-from {error}; weights of other programs are given as NETWORK=FILE") from error
    theirs = {owner_of(name) for name in manifest["tensors"] if kind_of(name) == NETWORKS}
    own = state.tensors()
    chosen = set(names) or theirs & state.networks.keys()
    if not chosen or chosen - (theirs & state.networks.keys()):
        raise UserError(
            f"{where}, --init-networks {','.join(names)}: it has {', '.join(sorted(theirs))}, and this run "
            f"{', '.join(state.networks)}; name some that both have"
        )
    owners = {id(each): owner_of(name) for name, each in own.items() if kind_of(name) == NETWORKS}
    for name in sorted(chosen):
        if others := {owners[id(each)] for each in state.networks[name].variables} - chosen:
            raise UserError(f"{where}: {name} has layers of {', '.join(sorted(others))}; name both in --init-networks")
    changed = state.sharing.relatives(chosen)
    only = tuple(f"{kind}/{name}/" for kind in (NETWORKS, EMA) for name in chosen)
    saved, moved = files.read(source, only, manifest).of_root(), dict[str, str]()
    for kind in (NETWORKS, EMA):
        if kind == EMA:
            state.begin_averages(changed & state.ema.keys())  # which stay where the other run has none
        for name in sorted(chosen):
            wanted = _by_their_names(where, own, saved, f"{kind}/{name}/", moved)
            files.assign(wanted, {name: saved[name] for name in wanted}, source)
    state.reset_optimizers(recipe, changed)  # some keep a copy of the weights, as ScheduleFreeAdamW
    remarks = [f"; the layers of {name} have moved, and are taken {how}" for name, how in moved.items()]
    fact = {"checkpoint": str(source), "sha256": _File(source, given.pin).digest(where)}
    line = f"{', '.join(sorted(chosen))} taken from {source}, sha256 {fact['sha256']}{''.join(remarks)}"
    return [line], dict.fromkeys(sorted(chosen), fact)


def _by_their_names(
    where: str, own: Mapping[str, keras.Variable], saved: Mapping[str, np.ndarray], folder: str, moved: dict[str, str]
) -> Mapping[str, keras.Variable]:
    """The variables of a folder by their names in another run, where Keras may have numbered the layers otherwise."""
    mine, theirs = ([key for key in some if key.startswith(folder)] for some in (own, saved))
    if not (mine and theirs):
        return {}
    if mine != theirs:
        moved[owner_of(folder)], mine = ("in order", mine) if {*mine} ^ {*theirs} else ("by name", theirs)
    for here, there in itertools.zip_longest(mine, theirs, fillvalue=""):
        now = here and f"{own[here].dtype} {tuple(own[here].shape)}"
        was = there and f"{saved[there].dtype} {saved[there].shape}"
        words = [re.sub(r"_\d+$", "", key.rpartition("/")[2]) for key in (here, there)]  # such as kernel
        if now != was or words[0] != words[1]:
            it = f"it has {there or 'nothing'} {was} where this run has {here or 'nothing'} {now}"
            raise UserError(f"{where}: {it}; take other networks with --init-networks")
    return dict(zip(theirs, (own[key] for key in mine), strict=True))
