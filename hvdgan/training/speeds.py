"""Names the rank that the others wait for, and says whether the input keeps up with the steps."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import median, median_low

from hvdgan.distributed.devices import everyones_devices
from hvdgan.distributed.ranks import Ranks
from hvdgan.runs.events import Event, InputSpeed, SlowRank
from hvdgan.settings.config import Config

_SLOW, _LOGS = 1.2, 3
"""times the median of the ranks from which on a rank is slow, and logs in a row after which it is named"""
_OWN = {"compute_seconds": "computes", "wait_seconds": "waits for its data"}
"""seconds of a step that are a rank's own, and what it does in them"""
_TOLERATED = 0.1
"""largest fraction of the time that the slowest rank may wait for its images"""


class Speeds:
    """Compares the ranks at each log, and names one that is slow in three logs in a row.

    A rank is slow if computing, waiting for its data and one all-reduce take 1.2 times as long as on the median rank,
    or of two on the faster one. It is named again only if it was not slow in three logs in a row meanwhile.
    """

    def __init__(self, ranks: Ranks, weights: Sequence[float], tell: Callable[[Event], None]) -> None:
        self._ranks, self._weights, self._tell = ranks, weights, tell
        self._logs: Counter[int] = Counter()
        """logs in a row in which each rank was slow, or below 0 in which it was not"""
        self._slow: set[int] = set()

    def add(self, step: int, everyones: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """Add the means of each rank, and return how the seconds differ over the ranks; every rank calls this."""
        seconds = [_split(each) for each in everyones]
        if len(seconds) == 1:
            return {}
        columns = {name: [each[name] for each in seconds] for name in seconds[0]}
        found = {
            f"{name}_{how.__name__}": how(column) for name, column in columns.items() for how in (min, median, max)
        }
        if "compute_seconds" not in columns:
            return found
        # An elastic run's ranks may have different numbers of samples.
        own = [
            {name: each[name] / weight for name in _OWN} for each, weight in zip(seconds, self._weights, strict=True)
        ]
        usual = {name: median_low(each[name] for each in own) for name in _OWN}
        exchange = min(columns["reduce_seconds"])  # what the slowest rank, for which the others wait, spends on it
        sums = [exchange + sum(each.values()) for each in own]
        middle = max(median_low(sums), 1e-9)
        for rank, ratio in enumerate(each / middle for each in sums):
            logs = self._logs[rank]
            self._logs[rank] = max(logs, 0) + 1 if ratio > _SLOW else min(logs, 0) - 1
            if self._logs[rank] == -_LOGS:
                self._slow.discard(rank)
            elif self._logs[rank] == _LOGS and rank not in self._slow:
                self._slow.add(rank)
                part = max(_OWN, key=lambda name: own[rank][name] - usual[name])
                self._name(step, rank, ratio, part, own[rank][part], usual[part])
        return {**found, "slowest_rank": sums.index(max(sums))}

    def _name(self, step: int, rank: int, ratio: float, part: str, seconds: float, usual: float) -> None:
        device = everyones_devices(self._ranks)[rank]
        text = (
            f"step {step}: rank {rank} on {device.host} ({device}) is {ratio:.2f} times as slow as the median of the "
            f"ranks, in {_LOGS} logs in a row: it {_OWN[part]} {1e3 * seconds:.3g} ms a step, the median is "
            f"{1e3 * usual:.3g} ms; the others wait for it"
        )
        host, ratio = device.host, round(ratio, 3)
        self._tell(SlowRank(text=text, step=step, rank=rank, host=host, device=str(device), ratio=ratio, part=part))


def _split(means: Mapping[str, float]) -> dict[str, float]:
    """Split a rank's mean step; on a GPU and with --deterministic only the wait for data is known."""
    if "reduce_seconds" not in means:
        return {"wait_seconds": means["wait_seconds"]}
    wait, reduce = means["wait_seconds"], means["reduce_seconds"]
    return {"compute_seconds": means["step_seconds"] - wait - reduce, "wait_seconds": wait, "reduce_seconds": reduce}


def input_speed(everyones: Sequence[Sequence[float]], config: Config, *, threads: int, prepared: bool) -> InputSpeed:
    """Describe in one line the rank that waits longest; the other ranks wait for it.

    A rank that waits receives images as fast as its pipeline reads them; the rest of a step is computing.
    """
    rank, (waited, total) = max(enumerate(everyones), key=lambda each: each[1][0])
    part = waited / max(total, 1e-9)
    if part <= _TOLERATED:
        spent = f"input keeps up: {part:.0%} of the time is spent waiting for images"
        return InputSpeed(is_bottleneck=False, text=spent)
    remedies = [] if prepared else ["pack the data once (hvdgan prepare)"]
    if config.pipeline.cache == "none":
        remedies.append("cache decoded images (--pipeline.cache memory)")
    remedies.append(f"if there are idle cores, read with more threads (--pipeline.threads, now {threads})")
    read, computed = (config.global_batch_size / max(seconds, 1e-9) for seconds in (total, total - waited))
    text = (
        f"input is the bottleneck: rank {rank} waits for images {part:.0%} of the time; the pipeline reads {read:.0f} "
        f"images/s, and the steps could take {computed:.0f}; {'; '.join(remedies)}"
    )
    return InputSpeed(is_bottleneck=True, text=text)
