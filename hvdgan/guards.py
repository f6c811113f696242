"""What ends a training that is no longer worth going on with; every rank calls these alike."""

import hashlib
from collections.abc import Sequence

from hvdgan.errors import RunError
from hvdgan.run import Run


def check_ranks(run: Run, done: int) -> None:
    """Stop where the ranks' weights or slots have drifted apart.

    Args:
        run: in the middle of its steps.
        done: steps so far.

    Raises:
        RunError: naming the tensors.
    """
    mine = run.state.digests()
    whole = hashlib.sha256("".join(mine.values()).encode()).hexdigest()
    if len(set(run.ranks.gather(whole, "digest of the weights"))) == 1:
        return
    everyones = run.ranks.gather(mine, "digests of the weights")
    apart = [name for name in mine if len({each[name] for each in everyones}) > 1]
    named = ", ".join(apart[:5])
    raise RunError(
        f"step {done}: the ranks have drifted apart in {len(apart)} of {len(mine)} tensors: {named}; "
        "they no longer train one model; go on from the last checkpoint, and look for a recipe that depends on the "
        "rank, or for hardware that computes wrongly"
    )


def not_finite(run: Run, where: str, mine: Sequence[str], bad_steps: int) -> RunError:
    """What to raise after too many steps whose gradients no rank has applied.

    Args:
        run: in the middle of its steps.
        where: step, stage and update.
        mine: what is not finite on this rank.
        bad_steps: how many there were in a row.
    """
    found = run.ranks.gather(list(mine), "what is not finite")
    named = [f"rank {rank}: {', '.join(each[:5])}" for rank, each in enumerate(found) if each]
    return RunError(
        f"{where}: the gradients are not finite ({'; '.join(named) or 'where, cannot be seen any more'}), "
        f"{bad_steps} step(s) in a row; no rank has applied them; lower the rate, or look at the data; "
        "the last checkpoint is intact"
    )
