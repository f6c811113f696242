"""Trains an elastic run: resumes from the last commit whenever a rank is lost or hosts come in."""

import gc
import sys
from collections.abc import Sequence
from pathlib import Path

from hvdgan.checkpoints import files
from hvdgan.distributed import devices
from hvdgan.distributed.backend import failures_in_words
from hvdgan.distributed.joining import Membership
from hvdgan.distributed.ranks import Ranks
from hvdgan.errors import LostPeer, RunError, UserError
from hvdgan.files.lock import lock
from hvdgan.training.build import folder_of
from hvdgan.training.command import Command
from hvdgan.training.loggers import LoggerChoice
from hvdgan.training.loop import Reached
from hvdgan.training.page import Page
from hvdgan.training.saving import Commits, HostsChanged
from hvdgan.training.session import Session, train, watch
from hvdgan.training.stopping import Stopping

_TRIES = 3
"""number of times that a run may resume from the same commit before another loss is an error"""


def train_elastic(command: Command, page: Page, loggers: Sequence[LoggerChoice]) -> Reached:
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
    config = command.config
    with Membership(config.accumulate, share_gpu=config.share_gpu, deterministic=config.deterministic) as membership:
        commits = Commits(command.elastic.commit_every, membership.hosts_changed)
        with Stopping(membership.join(), folder_of(config) / "stop", command.time_budget) as stopping:
            session = Session(command=command, stopping=stopping, page=page, loggers=loggers, commits=commits)
            tries: dict[int, int] = {}
            while (reached := _train_with(session, membership.ranks)) is None:
                step = commits.last.step if commits.last else -1
                tries[step] = tries.get(step, 0) + 1
                if tries[step] > _TRIES:
                    raise RunError(f"ranks were lost {tries[step]} times without a step in between: giving up")
                gc.collect()  # frees the old networks, whose memory the new ones need
                stopping.regroup(membership.join())
        membership.ranks.shutdown()
        return reached


def _train_with(session: Session, ranks: Ranks) -> Reached | None:
    """Train with these ranks to the end; returns None if other ranks are to continue."""
    config, page = session.command.config, session.page
    try:
        heartbeat = watch(session.command, ranks, elastic=True)
    except LostPeer:  # a rank was lost before the watch began
        return None
    # A rank that leaves this block without an error is not taken for one that has failed.
    with heartbeat as heart:
        try:
            with failures_in_words(heart.explanation):
                devices.check(devices.everyones_devices(ranks), share_gpu=config.share_gpu)
                return train(session, ranks, heart)
        except HostsChanged:
            pass
        except LostPeer as lost:
            if heart.has_failed():
                raise
            if ranks.is_root and page.run_dir is None:  # else the record of the run has it
                print(f"hvdgan: {lost}", file=sys.stderr, flush=True)
    page.run_dir = None  # the run may continue without this process
    _write_last_commit(folder_of(config) / "checkpoints", session.commits)
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
