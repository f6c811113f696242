"""Trains an elastic run: resumes from the last commit whenever a rank is lost or hosts come in."""

import gc
import sys
from pathlib import Path

from hvdgan.checkpoints import files
from hvdgan.distributed import devices
from hvdgan.distributed.collective_errors import failures_in_words
from hvdgan.distributed.joining import Membership
from hvdgan.errors import LostPeer, RunError, UserError
from hvdgan.files.lock import lock
from hvdgan.training import session
from hvdgan.training.build import folder_of
from hvdgan.training.command import Command
from hvdgan.training.report import Page
from hvdgan.training.resume_point import Commits, HostsChanged
from hvdgan.training.stopping import Stopping

_TRIES = 3
"""number of times that a run may resume from the same commit before another loss is an error"""


def train(command: Command, page: Page) -> bool:
    """Train to the last step, with other ranks whenever one is lost or hosts come in; the result is session.train()'s.

    Everything is built anew for each set of ranks, because the traced steps hold a rank's slice of the batch.
    """
    if command.expect_size is not None:
        raise UserError(
            f"--expect-size {command.expect_size}: the number of ranks of an elastic run changes; leave the flag "
            "out, and give --min-np to hvdgan launch"
        )
    if not command.config.peer_timeout:
        raise UserError(
            "--peer-timeout 0: an elastic run needs heartbeats to tell a failed rank from a lost one; give a value "
            "above 0"
        )
    with Membership(command.config.accumulate, share_gpu=command.config.share_gpu) as membership:
        commits = Commits(command.elastic.commit_every, membership.hosts_changed)
        ranks = membership.join()
        stop_file = folder_of(command.config) / "stop"
        with Stopping(ranks, stop_file, command.time_budget) as stopping:
            tries: dict[int, int] = {}
            while (reached := _train_with(command, membership, commits, stopping, page)) is None:
                step = commits.last.step if commits.last else -1
                tries[step] = tries.get(step, 0) + 1
                if tries[step] > _TRIES:
                    raise RunError(f"ranks were lost {tries[step]} times without a step in between: giving up")
                gc.collect()  # frees the old networks, whose memory the new ones need
                stopping.regroup(membership.join())
        membership.ranks.shutdown()
        return reached


def _train_with(
    command: Command, membership: Membership, commits: Commits, stopping: Stopping, page: Page
) -> bool | None:
    """Train with these ranks to the end; returns None if other ranks are to continue."""
    ranks = membership.ranks
    try:
        watch = session.watch(command, ranks, elastic=True)
    except LostPeer:  # a rank was lost before the watch began
        return None
    # A rank that leaves this block without an error is not taken for one that has failed.
    with watch as heart:
        run = None
        try:
            with failures_in_words(heart.explanation):
                devices.check(devices.everyones_devices(ranks), share_gpu=command.config.share_gpu)
                run, resume_point = session.build_and_restore(command, ranks, commits)
                return session.train(run, resume_point, heart, stopping, commits, page, loggers=command.loggers)
        except HostsChanged:
            pass
        except LostPeer as lost:
            if heart.has_failed():
                raise
            if ranks.is_root and run is None:  # later, session.train() has logged it
                print(f"hvdgan: {lost}", file=sys.stderr, flush=True)
    page.run_dir = None  # the run may continue without this process
    _write_last_commit(folder_of(command.config) / "checkpoints", commits)
    return None


def _write_last_commit(folder: Path, commits: Commits) -> None:
    """Write the last commit to the disk, because the ranks may not find each other again; one rank does it."""
    last = commits.last
    if last is None or not last.step:
        return
    try:
        with lock(folder.parent):
            newest = files.newest(folder)
            if newest is None or files.step_of(newest) < last.step:
                files.write(folder, last)
    except UserError:
        pass  # another rank has the lock, and writes
    except (RunError, OSError) as error:
        print(f"hvdgan: warning: {error}; the run continues", file=sys.stderr, flush=True)
