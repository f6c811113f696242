"""Opens what a run trains on: the data of each domain, split, balanced, and mapped."""

from collections.abc import Sequence
from typing import NamedTuple

from hvdgan.data.domains import joined, refuse_unclear, settings_of
from hvdgan.data.holdout import split
from hvdgan.data.opening import open_source
from hvdgan.data.order import balanced
from hvdgan.data.samples import Samples, cached
from hvdgan.data.statistics import with_statistics
from hvdgan.errors.shared_errors import Peers
from hvdgan.settings.config import Config
from hvdgan.values.sample_values import SampleValues


class KnownMaps(NamedTuple):
    """The fingerprint of the data that a checkpoint was trained on, and the maps of each domain with all statistics."""

    fingerprint: str
    values: Sequence[SampleValues]


def open_domains(
    config: Config,
    domains: Sequence[str],
    peers: Peers,
    *,
    paired: bool,
    is_evaluated: bool,
    known: KnownMaps | None,
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
