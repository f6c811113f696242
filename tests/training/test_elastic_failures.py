"""A collective fails while an elastic run is built; no launcher can cause that at a chosen moment."""

import contextlib
from types import SimpleNamespace

import pytest
import tensorflow as tf

from hvdgan.cli.errors import LostPeer
from hvdgan.distributed.ranks import Ranks
from hvdgan.training import elastic, session
from hvdgan.training.command import parse
from hvdgan.training.page import Page
from hvdgan.training.resume_point import Commits


def test_it_is_one_line_where_another_rank_has_failed(monkeypatch):
    heart = SimpleNamespace(explanation=lambda: "rank 1 has failed and reported its error", has_failed=lambda: True)
    monkeypatch.setattr(session, "watch", lambda *_, **__: contextlib.nullcontext(heart))
    monkeypatch.setattr(elastic, "check_devices", lambda ranks, *, share_gpu: None)

    def build(*_):
        raise tf.errors.UnknownError(None, None, "HorovodAllgather: Horovod has been shut down")

    monkeypatch.setattr(session, "build", build)
    command = parse(["--recipe", "tiny:Tiny"])
    with pytest.raises(LostPeer, match="a collective has failed: .*; rank 1 has failed and reported its error"):
        elastic.train_with(command, SimpleNamespace(ranks=Ranks()), Commits(1, lambda: False), None, Page("never"))
