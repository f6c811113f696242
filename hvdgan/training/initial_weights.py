"""What the networks of a new run begin with, if --init-from says so: those of another run, or weights of a file."""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import keras
import numpy as np

from hvdgan.checkpoints import files, foreign_weights
from hvdgan.checkpoints.foreign_weights import Tensors
from hvdgan.checkpoints.tensor_names import EMA, NETWORKS, kind_of, owner_of
from hvdgan.errors import RunError, UserError
from hvdgan.networks.layers import is_seed, names_in_files
from hvdgan.settings.config import Config
from hvdgan.settings.own_code import sha256_of
from hvdgan.training.build import Run

Facts = dict[str, dict[str, str]]
"""for each network the file and its SHA-256 in hex, and those of the map"""


def take(run: Run) -> tuple[list[str], Facts]:
    """Give networks of a new run, and their averages, the values that the command names; returns lines, and facts."""
    config, given = run.config, _files(run.config)
    if config.init_networks and (given or config.init_from is None):
        raise UserError(f"--init-networks {','.join(config.init_networks)}: name a run with --init-from")
    if not given:
        return ([], {}) if config.init_from is None else _take_networks(run, Path(config.init_from))
    rules = foreign_weights.read_rules(Path(config.init_map)) if config.init_map else {}
    facts, lines, values = Facts(), list[str](), list[tuple[keras.Variable, np.ndarray]]()
    for name, path in given.items():
        tensors, shapes = _opened(run, name, path)
        found = foreign_weights.matched(tensors, shapes, rules.get(name, ()), f"--init-from {name}={path}")
        values += [(each, found[each.path]) for each in run.state.networks[name].variables if each.path in found]
        facts[name] = {"file": str(path), "sha256": sha256_of(path)}
        if config.init_map:
            facts[name] |= {"map": config.init_map, "sha256_of_map": sha256_of(Path(config.init_map))}
        of_file = ", ".join(f"{fact} {value}" for fact, value in facts[name].items())
        lines.append(f"{name}: {len(found)} tensors taken from {of_file}")
    for variable, value in values:
        variable.assign(value.astype(variable.dtype))
    changed = run.state.sharing.relatives(given)
    begin_averages(run, changed & run.state.ema.keys())
    run.state.reset_optimizers(run.recipe, changed)  # some keep a copy of the weights, as ScheduleFreeAdamW
    return lines, facts


def proposal(run: Run) -> Iterator[str]:
    """Write a map for --init-map, in lines."""
    for name, path in _files(run.config).items():
        yield from foreign_weights.proposed(*_opened(run, name, path), name)


def _files(config: Config) -> dict[str, Path]:
    """The files of weights that --init-from names, by network; none if it names a run."""
    named = re.split(r",(?=[^/=,]+=)", config.init_from or "")
    if not re.match("[^/=,]+=", named[0]) or Path(named[0]).exists():
        if config.init_map:
            raise UserError(f"--init-map {config.init_map}: name weights with --init-from NETWORK=FILE")
        return {}
    return {name: Path(file) for name, _, file in (each.partition("=") for each in named)}


def _opened(run: Run, name: str, path: Path) -> tuple[Tensors, dict[str, tuple[int, ...]]]:
    """The tensors of a file for a network, and the shapes of the network's variables, by their names."""
    where, network = f"--init-from {name}={path}", run.state.networks.get(name)
    if network is None:
        known = f"is no network of this run, which has {', '.join(run.state.networks)}"
        is_frozen = "is frozen, and no checkpoint holds it: load its file in networks()"
        raise UserError(f"{where}: {name} {is_frozen if name in run.state.frozen else known}")
    of_keras = {name: variable.path for name, variable in names_in_files(network).items()}
    tensors = {of_keras.get(each, each): value for each, value in foreign_weights.read(path, where).items()}
    return tensors, {each.path: tuple(each.shape) for each in network.variables if not is_seed(each)}


def _take_networks(run: Run, path: Path) -> tuple[list[str], Facts]:
    """Give networks, and their averages, the values of another run's."""
    where, names = f"--init-from {path}", run.config.init_networks
    try:
        source = files.find(path)
        manifest = files.read_manifest(source)
    except RunError as error:
        raise UserError(f"--init-from {error}; weights of other programs are given as NETWORK=FILE") from error
    theirs = {owner_of(name) for name in manifest["tensors"] if kind_of(name) == NETWORKS}
    own = run.state.tensors()
    chosen = set(names) or theirs & run.state.networks.keys()
    if not chosen or chosen - (theirs & run.state.networks.keys()):
        raise UserError(
            f"{where}, --init-networks {','.join(names)}: it has {', '.join(sorted(theirs))}, and this run "
            f"{', '.join(run.state.networks)}; name some that both have"
        )
    owners = {id(each): owner_of(name) for name, each in own.items() if kind_of(name) == NETWORKS}
    for name in sorted(chosen):
        if others := {owners[id(each)] for each in run.state.networks[name].variables} - chosen:
            raise UserError(f"{where}: {name} has layers of {', '.join(sorted(others))}; name both in --init-networks")
    changed = run.state.sharing.relatives(chosen)
    only = tuple(f"{kind}/{name}/" for kind in (NETWORKS, EMA) for name in chosen)
    saved, moved = files.read(source, only, manifest).of_root(), dict[str, str]()
    for kind in (NETWORKS, EMA):
        if kind == EMA:
            begin_averages(run, changed & run.state.ema.keys())  # which stay where the other run has none
        for name in sorted(chosen):
            wanted = _by_their_names(where, own, saved, f"{kind}/{name}/", moved)
            files.assign(wanted, {name: saved[name] for name in wanted}, source)
    run.state.reset_optimizers(run.recipe, changed)  # some keep a copy of the weights, as ScheduleFreeAdamW
    remarks = [f"; the layers of {name} have moved, and are taken {how}" for name, how in moved.items()]
    fact = {"file": str(source), "sha256": sha256_of(source)}
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


def begin_averages(run: Run, networks: Iterable[str]) -> None:
    """Set the averages of these networks to their weights, as in a new run."""
    pairs = run.state.sampling_values()
    for variable, average in (pair for name in networks for pair in pairs[name]):
        average.assign(variable)
