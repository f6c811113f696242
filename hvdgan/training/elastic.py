"""A run whose ranks come and go: from the last commit on, with those that are there, as often as that changes."""

import gc
import sys
from pathlib import Path

import tensorflow as tf

from hvdgan.checkpoints import checkpoint, files
from hvdgan.cli.errors import LostPeer, RunError, UserError
from hvdgan.cli.lock import lock, wait_for_lock
from hvdgan.distributed.collective_errors import collective_failure
from hvdgan.distributed.devices import check_devices
from hvdgan.distributed.liveness import heartbeat
from hvdgan.distributed.membership import Membership
from hvdgan.training import loop, run
from hvdgan.training.command import Command
from hvdgan.training.commits import Commits, HostsChanged
from hvdgan.training.monitoring.stopping import Stopping
from hvdgan.training.resuming.claim import Found

_IN_VAIN = 3  # times that the same commit may be gone back to before a loss counts as an error


def train(command: Command) -> bool:
    """Train as hvdgan.training.loop.train does, with other ranks whenever one is lost or hosts come in.

    Everything is built anew for each set of ranks: whatever is traced holds a rank's slice of the batch.

    Args:
        command: what the command line asks for.

    Returns:
        Whether the last step is reached.

    Raises:
        RunError: whatever is not a lost rank: a full disk, a diverged loss, an error of the recipe on some rank.
    """
    if command.expect_size is not None:
        raise UserError(
            f"--expect-size {command.expect_size}: the ranks of an elastic run come and go; leave the flag out, and "
            "give --min-np to launch/elastic.sh"
        )
    if not command.config.peer_timeout:
        raise UserError("--peer-timeout 0: an elastic run would take a rank with an error of its own for a lost one")
    with Membership(command.config.accumulate) as membership:
        commits = Commits(command.elastic.commit_every, membership.hosts_changed)
        ranks = membership.join()
        stop_file = run.folder_of(command.config) / "stop"
        with Stopping(ranks, stop_file, command.time_budget) as stopping:
            tries: dict[int, int] = {}
            while (reached := _train(command, membership, commits, stopping)) is None:
                step = commits.last.step if commits.last else -1
                tries[step] = tries.get(step, 0) + 1
                if tries[step] > _IN_VAIN:
                    raise RunError(f"ranks were lost {tries[step]} times without a step in between: giving up")
                gc.collect()  # the networks before, which the new ones need the memory of
                stopping.regroup(membership.join())
        membership.ranks.shutdown()
        return reached


def _train(command: Command, membership: Membership, commits: Commits, stopping: Stopping) -> bool | None:
    """Train with these ranks to the end; None where they are to be others."""
    ranks = membership.ranks
    run_dir = run.folder_of(command.config)
    try:
        watch = heartbeat.start(
            ranks.rank,
            ranks.gather,
            command.config.peer_timeout,
            run_dir / "log.txt",
            elastic=True,
            stall_seconds=command.config.stall_timeout,
            activity=ranks.activity,
        )
    except tf.errors.OpError as error:  # a rank was lost before anyone watched
        lost = collective_failure(error, lambda: None)
        if isinstance(lost, LostPeer):
            return None
        raise lost or error from None
    # As long as this rank leaves without an error the others do not take it for one that failed.
    with watch as heart:
        try:
            check_devices(ranks)
            built = run.build(command.config, command.recipe, command.options, ranks)
            found = _restore(built, commits) or loop.restore(built, command.resume)
            return loop.go_on(built, found, heart, stopping, commits)
        except HostsChanged:
            pass
        except (tf.errors.OpError, RunError) as error:
            known = collective_failure(error, heart.opinion) if isinstance(error, tf.errors.OpError) else error
            if not isinstance(known, LostPeer) or heart.has_failed():
                if known is None or known is error:
                    raise
                raise known from error
            if ranks.is_root and known is not error:  # the loop has said its own
                print(f"hvdgan: {known}", file=sys.stderr, flush=True)
    _write_down(run.checkpoints_of(command.config), commits)
    return None


def _write_down(folder: Path, commits: Commits) -> None:
    """Bring the last commit to the disk, since the ranks may not find each other again; one rank does it."""
    last = commits.last
    if last is None or not last.step:
        return
    try:
        with lock(folder.parent):
            newest = files.newest(folder)
            if newest is None or files.step_of(newest) < last.step:
                checkpoint.write(folder, last)
    except UserError:
        pass  # another rank has the lock, and writes
    except (RunError, OSError) as error:
        print(f"hvdgan: warning: {error}; training goes on", file=sys.stderr, flush=True)


def _restore(built: run.Run, commits: Commits) -> Found | None:
    """Go back to the last commit, and let rank 0, which may be another than before, take the run folder."""
    found = commits.restore(built)
    if found is None:
        return None

    def work() -> None:
        # The rank 0 before, on this host too, may still be on its way out.
        try:
            found.lock = found.lock or wait_for_lock(built.run_dir, living=True)
        except OSError as error:
            raise RunError(f"{built.run_dir} cannot be written: {error}; free space or rights, then resume") from error

    built.ranks.from_root(work, "run folder")
    return found
