"""Words about the memory of a run: a stage that will not fit, and what each stage has taken."""

from collections.abc import Iterator

from hvdgan.recipe.schedule import Position
from hvdgan.training.building.run import Run
from hvdgan.training.memory.device import peak_memory, room
from hvdgan.training.memory.estimate import Estimate, in_words


def too_large(run: Run) -> Iterator[str]:
    """Yield a warning for each stage that needs more memory than a rank has; every rank calls this.

    Args:
        run: run, built, whose variables are in memory.
    """
    rooms = run.ranks.gather(room(run.ranks), "room in memory")
    known = [(free, rank) for rank, free in enumerate(rooms) if free is not None]
    for stage, memory in zip(run.schedule.stages, run.estimates, strict=True):
        if known and memory.peak.total > min(known)[0]:
            free, rank = min(known)
            yield (
                f"warning: stage {stage.name} needs about {in_words(memory.peak.total)} of memory besides the "
                f"{in_words(memory.state)} of its variables, and {in_words(free)} are left for rank {rank}; "
                f"{advice(run, memory, free)}"
            )


def used_by(run: Run, at: Position) -> str:
    """Describe the most memory that a rank has taken; every rank calls this at the end of a stage.

    Args:
        run: run, built.
        at: position in the stage.
    """
    mine = peak_memory()
    gpu = mine["peak_gpu_bytes"]
    peaks = run.ranks.gather(mine["peak_rss_bytes"] if gpu is None else gpu, "peak memory")
    rank = peaks.index(max(peaks))
    whose = "process" if gpu is None else "GPU"
    return (
        f"stage {at.stage.name}: peak memory of a {whose} {max(peaks) / 1e9:,.3g} GB, on rank {rank}; estimated for "
        f"the steps {in_words(run.estimates[at.index].total)}, TensorFlow itself not counted"
    )


def advice(run: Run, memory: Estimate, free: int | None) -> str:
    """Suggest what to change so that a stage fits.

    Args:
        run: run, built.
        memory: estimate of the stage.
        free: bytes that there are for activations and gradients; None: they are not known.
    """
    sizes = micro_batches(run)
    parts = memory.fitting(None if free is None else free + memory.state, sizes)
    ways = []
    if parts is not None:
        ways = [f"--accumulate {parts} (about {in_words(memory.accumulated(parts, sizes[parts]))})"]
    ways += [] if run.config.remat or run.config.jit else ["--remat"]
    return f"try {', '.join([*ways, 'a smaller --global-batch-size'])} or smaller networks"


def micro_batches(run: Run) -> dict[int, int]:
    """The values of --accumulate above the present one that the run could take, the smallest first.

    Args:
        run: run, built.

    Returns:
        For each value the number of samples in the largest micro-batch of any rank. The slices of an elastic run are
        multiples of the value, and need not be equal (hvdgan/distributed/slices.py).
    """
    batch, ranks = run.config.global_batch_size, run.ranks
    divided = batch if ranks.slice_unit else batch // ranks.size
    values = range(run.config.accumulate + 1, batch // ranks.size + 1)
    return {value: -(-batch // (value * ranks.size)) for value in values if divided % value == 0}
