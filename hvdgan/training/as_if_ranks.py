"""What a run would be on many ranks, computed on one: --dry-run --as-if-ranks N."""

import math
from collections.abc import Iterator

from hvdgan.distributed.ranks import Ranks
from hvdgan.training.run import Run, check_micro_batches, check_packs
from hvdgan.training.summary import reduced_bytes

_GBITS = (10, 100)  # of Ethernet, and of a host with a fast interconnect


def as_if(run: Run, size: int) -> Iterator[str]:
    """Describe the slices of this many ranks, what each holds, and the time of the all-reduce, in lines.

    Raises:
        UserError: this many ranks cannot share the global batch.
    """
    config, ranks = run.config, Ranks(size=size)
    first, past = ranks.slice_of(config.global_batch_size)
    check_micro_batches(ranks, config)
    check_packs(ranks, config, run.recipe)
    micro = f" in {config.accumulate} micro-batches" if config.accumulate > 1 else ""
    steps = len(run.source) / config.global_batch_size
    yield (
        f"as if on {size} ranks: {past - first} samples of {config.global_batch_size} a rank and step{micro}; an epoch "
        f"has {steps:,.6g} steps, in which a rank reads {len(run.source) / size:,.6g} samples"
    )
    held = sum(math.prod(each.shape) * each.value.dtype.size for each in run.state.tensors().values())
    yield f"each rank holds {held / 1e6:,.1f} MB of weights, slots and averages, and what the step computes"
    for step in run.steps:
        each = 2 if config.compression == "fp16" else 4
        sent = sum(reduced_bytes(step, update, each) / update.every for update in step.stage.updates)
        times = (f"{2e3 * (size - 1) / size * sent / (gbits * 1.25e8):.3g} ms at {gbits} Gbit/s" for gbits in _GBITS)
        yield f"stage {step.stage.name}: all-reduces {sent / 1e6:,.2f} MB a step: {', '.join(times)}, if none is late"
