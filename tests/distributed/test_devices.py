"""The GPU of each rank, from fake lists of GPUs, and the check that the devices of the ranks agree."""

from types import SimpleNamespace

import pytest
import tensorflow as tf

from hvdgan.cli.errors import UserError
from hvdgan.distributed import devices
from hvdgan.distributed.devices import Device


@pytest.fixture
def gpus(monkeypatch):
    """A function that makes TensorFlow see a number of GPUs; its list `asked` holds the calls to TensorFlow."""
    asked = []

    def see(number: int) -> None:
        seen = [f"GPU:{index}" for index in range(number)]
        monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: seen if kind == "GPU" else [])
        monkeypatch.setattr(tf.config, "set_visible_devices", lambda gpu, kind: asked.append(("visible", gpu, kind)))
        details = SimpleNamespace(
            set_memory_growth=lambda gpu, on: asked.append(("growth", gpu, on)),
            get_device_details=lambda gpu: {"device_name": "A100"},
        )
        monkeypatch.setattr(tf.config, "experimental", details)

    see.asked = asked
    return see


@pytest.mark.parametrize(
    ("visible", "local_rank", "expected"),
    [(1, 0, 0), (1, 3, 0), (4, 0, 0), (4, 3, 3), (4, 4, None), (2, 2, None), (0, 0, None)],
)
def test_a_rank_takes_the_only_gpu_it_sees_or_the_one_of_its_local_rank(gpus, visible, local_rank, expected):
    gpus(visible)
    devices.claim(local_rank)
    device = devices.claimed(local_rank, 4)
    assert (device.gpu, device.seen) == (expected, visible)
    if expected is None:
        assert gpus.asked == []
    else:
        assert gpus.asked == [("visible", f"GPU:{expected}", "GPU"), ("growth", f"GPU:{expected}", True)]


def of(host: str, gpu: int | None, seen: int = 4, among: str = "all", local_rank: int = 0) -> Device:
    return Device(host, gpu, seen, among, "A100" if gpu is not None else "", 4, local_rank)


@pytest.mark.parametrize(
    "together",
    [
        [of("a", 0), of("a", 1), of("b", 0), of("b", 1)],
        # One GPU shown to each, by its number; and each shut in with its own, which both call 0.
        [of("a", 0, 1, "0"), of("a", 0, 1, "1")],
        [of("a", 0, 1, "0 2"), of("a", 0, 1, "0 3")],
        [of("a", None, 0), of("b", None, 0)],
    ],
)
def test_ranks_with_a_gpu_each_or_none_at_all_go_together(together):
    devices.check(together)


@pytest.mark.parametrize(
    ("apart", "complaint"),
    [
        ([of("a", 0), of("b", 0), of("a", 0)], "ranks 0 and 2 would share one GPU of a"),
        (
            [of("a", 0, 2), of("a", 1, 2), of("a", None, 2, local_rank=2)],
            "rank 2 has no GPU: it is local rank 2 on a, which has 2; start at most one rank for each GPU",
        ),
        ([of("a", 0), of("b", None, 0)], "rank 1 on b sees no GPU, and others have one"),
    ],
)
def test_devices_that_do_not_fit_together_are_refused_by_rank_and_host(apart, complaint):
    with pytest.raises(UserError, match=complaint):
        devices.check(apart)


def test_each_host_has_a_line_with_its_ranks():
    places = [of("a", 0), of("a", 1), of("b", None, 0)]
    assert devices.by_host(places) == ["a: ranks 0-1: GPUs 0-1 (A100)", "b: rank 2: CPU, 4 cores"]
    places = [of("a", 2), of("b", None, 0), of("a", 0), of("b", None, 0)]
    assert devices.by_host(places) == ["a: ranks 0, 2: GPUs 2, 0 (A100)", "b: ranks 1, 3: CPU, 4 cores each"]
    assert Device(**devices.facts(places[0])) == places[0]
