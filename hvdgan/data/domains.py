"""Opens what a run trains on: the data of each domain of the recipe, split, balanced and mapped.

Domains are for instance photographs and paintings, each with its own order and epochs; most recipes have one.
A batch of them has the samples of the first domain under the names of all batches, and those of another one under the
same names after its own: images, labels, B/images, B/labels.
"""

import collections
import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from hvdgan.data.bad_files import BadFile
from hvdgan.data.holdout import split
from hvdgan.data.opening import open_source
from hvdgan.data.order import LABELS, balanced
from hvdgan.data.samples import Samples, cached, fingerprint_of
from hvdgan.data.statistics import with_statistics
from hvdgan.errors import UserError
from hvdgan.errors.shared_errors import ALONE, Peers, from_root
from hvdgan.settings.config import Config
from hvdgan.values.sample_values import SampleValues

_ARRAYS = (".npz", ".h5", ".hdf5", ".nc", ".zarr")
"""kinds of files that hold several arrays by name"""

T = TypeVar("T")


def settings_of(config: Config, domains: Sequence[str], peers: Peers = ALONE) -> dict[str, Config]:
    """The settings with which to open each domain, by its name; of a recipe without domains those given, under ""."""
    others = config.other_data
    if domains and config.arrays.arrays:
        raise UserError(f"--arrays {','.join(config.arrays.arrays)}: is for recipes without domains; leave it out")
    if not domains:
        if others:
            raise UserError(f"--data {config.data}, {', '.join(others)}: the recipe has one domain; give --data once")
        return {"": config}
    found = from_root(lambda: _data_of(config.data, others, domains), peers, f"--data {config.data}: its domains")
    return {
        name: dataclasses.replace(config, data=data, other_data=()) for name, data in zip(domains, found, strict=True)
    }


def _data_of(data: str, others: Sequence[str], domains: Sequence[str]) -> list[str]:
    """What --data names for each domain."""
    if others and len(others) + 1 == len(domains):
        return [data, *others]
    inside = [_inside(data, name) for name in domains]
    if others or None in inside:
        problem = f"has no {domains[inside.index(None)]}" if None in inside else f"and {', '.join(others)}"
        names = " and ".join(domains)
        raise UserError(
            f"--data {data}: {problem}; the recipe takes samples of {names}: expected a folder with the folders "
            f"{names} (or {' and '.join(f'train{name}' for name in domains)}), a file with arrays of these names, or "
            f"--data {len(domains)} times, in this order"
        )
    return [each for each in inside if each is not None]


def _inside(data: str, name: str) -> str | None:
    """The data of a domain within a folder, or a file of arrays; None if it is not there."""
    if data.lower().rstrip("/").endswith(_ARRAYS) and os.path.exists(data):
        return f"{data}:{name}"
    folders = (os.path.join(data, folder) for folder in (name, f"train{name}"))
    return next((folder for folder in folders if os.path.isdir(folder)), None)


def refuse_unclear(config: Config, parts: Mapping[str, Samples], peers: Peers) -> None:
    """Refuse numbers of samples that do not say of which domain they are, and would count for each of their length."""
    table = config.arrays.condition_table

    def look() -> None:
        keys = (each.key(index) for each in parts.values() if table for index in range(len(each)))
        flag = "" if config.balance in (None, LABELS) else f"--balance {config.balance}"
        in_order = config.arrays.condition_order == "rows"
        if table is not None and (in_order or max(collections.Counter(keys).values()) > 1):
            flag = f"--condition-table {table}"
        if flag:
            cure = "give --balance labels, or a table with a column `file` of names that no two of them have"
            raise UserError(f"{flag}: does not say which numbers are of {' and which of '.join(parts)}; {cure}")

    if len(parts) > 1:
        from_root(look, peers, "numbers of the domains' samples")


def joined(parts: Mapping[str, Samples]) -> Samples:
    """The samples of the first domain together with those of the others, and fingerprint and remarks of all."""
    (_, first), *others = parts.items()
    if not others:
        return first
    return first.replace(
        beside=dict(others),
        fingerprint=fingerprint_of(b"domains", [each.fingerprint.encode() for each in parts.values()]),
        remarks=[line for each in parts.values() for line in each.remarks],
    )


def seed_of(seed: int, number: int) -> int:
    """The seed of the order of a domain, by its number: domains of one size have different orders."""
    return seed + number * 2**31  # --seed is less


def bad_files_of(source: Samples) -> list[BadFile]:
    """The files of all domains that were found broken on opening."""
    return [in_domain(bad, name) for name, each in source.domains.items() for bad in each.bad_files]


def in_domain(bad: BadFile, domain: str) -> BadFile:
    """A broken file under the name that it has beside those of other domains."""
    return BadFile(f"{domain}/{bad.name}", bad.reason) if domain else bad


def named(domain: str, parts: Mapping[str, T]) -> dict[str, T]:
    """Parts of a batch under the names that they have for a domain; "" is the first one."""
    return {f"{domain}/{name}" if domain else name: each for name, each in parts.items()}


class KnownMaps(NamedTuple):
    """The fingerprint of the data that a checkpoint was trained on, and the maps of each domain with all statistics."""

    fingerprint: str
    values: Sequence[SampleValues]


def open_domains(
    config: Config, domains: Sequence[str], peers: Peers, *, paired: bool, is_evaluated: bool, known: KnownMaps | None
) -> tuple[Samples, Samples | None, Samples | None]:
    """Open the data of each domain and split them; the samples to train on alone determine the maps.

    Returns the samples to train on, mapped; those held out; and those of them that evaluations use, mapped. Statistics
    of `known` maps serve if the data are the same.
    """
    sources = dict[str, Samples]()
    for name, settings in settings_of(config, domains, peers).items():
        sources[name] = cached(open_source(settings, paired=paired, peers=peers), config.pipeline.cache, peers)
    refuse_unclear(config, sources, peers)
    sources, held_out = split(sources, config.holdout, peers, is_evaluated=is_evaluated)
    if config.balance:
        sources = {name: balanced(each, config.balance) for name, each in sources.items()}
    are_known = known is not None and known.fingerprint == joined(sources).fingerprint
    maps = known.values if known and are_known else [None] * len(sources)
    for (name, source), values in zip(sources.items(), maps, strict=True):
        sources[name] = source.mapped(with_statistics(source, peers, values))
    if not held_out:
        return joined(sources), None, None
    most = config.evaluation.eval_held_out
    evaluated = {name: held.some(most).mapped(sources[name].values) for name, held in held_out.items()}
    return joined(sources), joined({name: held.samples for name, held in held_out.items()}), joined(evaluated)
