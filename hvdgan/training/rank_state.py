"""What differs between the ranks: statistics of samples, networks that a rank trains for itself, state per sample."""

import collections
import contextlib
import itertools
import math
from collections.abc import Iterator, Mapping

import keras
import numpy as np

from hvdgan.checkpoints.files import Snapshot
from hvdgan.checkpoints.tensor_names import of_one
from hvdgan.distributed.ranks import Ranks
from hvdgan.errors import UserError
from hvdgan.training.train_state import TrainState, copies_of, copy_of

Everyones = Mapping[str, np.ndarray]
"""values of all ranks, (ranks, ...) or (global batch, ...), by the names that a checkpoint gives those of one"""


class RankState:
    """The variables of this rank whose values differ between the ranks, by the names that a checkpoint gives them."""

    def __init__(self, state: TrainState, ranks: Ranks, global_batch_size: int) -> None:
        self._statistics = state.statistics()
        """what each rank estimates from its own samples; a run on another number of ranks has their means"""
        self.local = state.of_local()
        """what each rank trains for itself; on another number of ranks, rank r has those of r modulo that number"""
        self._per_sample = state.declared_state.own()
        """this rank's slice of values for each sample of the global batch"""
        self._ranks, self._global_batch_size = ranks, global_batch_size
        self._slice = slice(*ranks.slice_of(global_batch_size))

    def gather(self) -> dict[str, np.ndarray]:
        """Return the values of all ranks; every rank calls this."""
        rows = _stacked({**(self._statistics if self._ranks.size > 1 else {}), **self.local}, self._ranks)
        return rows | {name: self._ranks.concatenate(copy_of(each)) for name, each in self._per_sample.items()}

    def means(self, everyones: Everyones) -> dict[str, np.ndarray]:
        """The means of the statistics over the ranks; none if there is one rank, which has them."""
        # In double precision, so that the mean of equal numbers is exactly that number, for any number of ranks.
        rows = {name: everyones[name] for name in self._statistics if name in everyones}
        return {name: each.astype(np.float64).mean(axis=0).astype(each.dtype) for name, each in rows.items()}

    @contextlib.contextmanager
    def averaged(self, everyones: Everyones) -> Iterator[None]:
        """Set the statistics to their means over the ranks, and restore this rank's own bits afterwards."""
        means = self.means(everyones)
        own = copies_of({name: self._statistics[name] for name in means})
        self._set(means)
        try:
            yield
        finally:
            self._set(own)

    def scatter(self, everyones: Everyones, saved_by: int, root: int) -> None:
        """Give each rank its part of what `saved_by` ranks had and the root has read; every rank calls this.

        The variables have the root's values before, which stay where it has not read those of all ranks.
        """
        ranks = self._ranks
        for name, variable in {**self.local, **(self._statistics if saved_by == ranks.size > 1 else {})}.items():
            rows = everyones.get(name, np.repeat(copy_of(variable)[None], saved_by, axis=0))
            variable.assign(ranks.broadcast_array(rows, root)[ranks.rank % saved_by])
        for name, variable in self._per_sample.items():
            whole = everyones.get(name, np.zeros((self._global_batch_size, *variable.shape[1:]), variable.dtype))
            variable.assign(ranks.broadcast_array(whole, root)[self._slice])

    def check_fits(self, saved: Snapshot, where: str) -> None:
        """Refuse a checkpoint with other networks of each rank, or other state per sample, than this run has."""
        count, batch = saved.facts["ranks"], self._global_batch_size
        wanted = {name: f"{each.dtype} {(count, *each.shape)}" for name, each in self.local.items()}
        wanted |= {name: f"{each.dtype} {(batch, *each.shape[1:])}" for name, each in self._per_sample.items()}
        ones = of_one(saved.values)
        found = {name: f"{each.dtype} {each.shape}" for name, each in saved.of_ranks().items() if name not in ones}
        for name in [*wanted, *found]:
            if (was := found.get(name, "missing")) != (now := wanted.get(name, "missing")):
                raise UserError(
                    f"{where}: {name} of all ranks is {was}, and this run's is {now}; give the recipe and options it "
                    "was saved with"
                )

    def _set(self, values: Mapping[str, np.ndarray]) -> None:
        for name, value in values.items():
            self._statistics[name].assign(value)


def _stacked(variables: Mapping[str, keras.Variable], ranks: Ranks) -> dict[str, np.ndarray]:
    """The values of variables on all ranks, (ranks, ...) each, by one collective for each dtype."""
    by_dtype: dict[str, dict[str, np.ndarray]] = collections.defaultdict(dict)
    for name, value in copies_of(variables).items():
        by_dtype[value.dtype.name][name] = value
    found: dict[str, np.ndarray] = {}
    for values in by_dtype.values():
        everyones = ranks.stack(np.concatenate([value.ravel() for value in values.values()]))
        ends = itertools.accumulate(math.prod(value.shape) for value in values.values())
        columns = np.split(everyones, list(ends)[:-1], axis=1)
        for (name, value), part in zip(values.items(), columns, strict=True):
            found[name] = part.reshape(-1, *value.shape)
    return found
