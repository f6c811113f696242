"""Notices of hosts that come or go, without a launcher; tests/training/test_elastic.py has whole elastic runs."""

from types import SimpleNamespace

import pytest

from hvdgan.distributed import backend, membership
from hvdgan.distributed.membership import Membership
from hvdgan.distributed.ranks import Ranks


@pytest.fixture
def calls(monkeypatch):
    """The calls of Horovod's notices and of join_elastic(), in order."""
    calls = []
    notices = SimpleNamespace(
        init=lambda: calls.append("init"),
        register_listener=lambda listener: calls.append("register"),
        remove_listener=lambda listener: calls.append("remove"),
    )

    def join(*, again, slice_unit, share_gpu):
        calls.append(("join", again, slice_unit))
        return Ranks(slice_unit=slice_unit)

    monkeypatch.setattr(backend, "host_notices", lambda: notices)
    monkeypatch.setattr(membership, "join_elastic", join)
    return calls


def test_a_process_joins_again_and_listens_once(calls):
    with Membership(4) as member:
        assert member.join() == member.ranks == Ranks(slice_unit=4)
        member.join()
    assert calls == [("join", False, 4), "init", "register", ("join", True, 4), "remove"]


def test_a_process_that_never_joined_leaves_no_listener(calls):
    with Membership(4):
        pass
    assert calls == []


def test_a_notice_is_forgotten_after_the_next_join_unless_it_arrives_during_that_join(calls, monkeypatch):
    with Membership(1) as member:
        member.join()
        assert not member.hosts_changed()
        member.on_hosts_updated(0, None)
        assert member.hosts_changed()
        member.join()
        assert not member.hosts_changed()

        def join(*, again, slice_unit, share_gpu):
            member.on_hosts_updated(1, None)
            return Ranks()

        monkeypatch.setattr(membership, "join_elastic", join)
        member.join()
        assert member.hosts_changed()


def test_horovod_has_the_notices_that_a_membership_uses():
    notices = backend.host_notices()
    assert all(callable(getattr(notices, name)) for name in ("init", "register_listener", "remove_listener"))
