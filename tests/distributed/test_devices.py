"""The GPU of each rank, from fake lists of GPUs, and the check that the devices of the ranks agree."""

import dataclasses
import os

import pytest
import tensorflow as tf

from hvdgan.distributed import cuda, devices
from hvdgan.distributed.devices import Device
from hvdgan.errors import UserError


class Machine:
    """What TensorFlow and CUDA show of a host: the GPUs of these UUIDs, and what was asked of them."""

    def __init__(self, monkeypatch):
        self.asked, self.limits, self.is_open, self.uuids, self.visible = [], {}, False, [], None
        monkeypatch.setattr(cuda, "uuid", lambda index: self.uuids[index])
        monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: self.gpus if kind == "GPU" else [])
        monkeypatch.setattr(tf.config, "set_visible_devices", lambda gpu, kind: self.ask("visible", gpu))
        visible = lambda kind: [self.visible] if self.visible else self.gpus  # noqa: E731
        monkeypatch.setattr(tf.config, "get_visible_devices", visible)
        monkeypatch.setattr(tf.config, "get_logical_device_configuration", self.limits.get)
        monkeypatch.setattr(tf.config, "set_logical_device_configuration", self.limit)
        monkeypatch.setattr(tf.config.experimental, "set_memory_growth", lambda gpu, on: self.ask("growth", gpu))
        monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda gpu: {"device_name": "A100"})

    @property
    def gpus(self):
        return [f"GPU:{index}" for index in range(len(self.uuids))]

    def ask(self, what, gpu):
        if what == "growth" and gpu in self.limits:  # as TensorFlow does
            raise ValueError("Cannot set memory growth on device when virtual devices configured")
        self.asked.append((what, gpu))
        if what == "visible":
            self.visible = gpu

    def limit(self, gpu, configuration):
        if self.is_open:
            raise RuntimeError("Virtual devices cannot be modified after being initialized")
        self.limits[gpu] = configuration


@pytest.fixture
def machine(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return Machine(monkeypatch)


def claimed_by(machine, shown):
    """The devices that the ranks of a host claim, of which CUDA shows each the GPUs of these UUIDs."""
    found = []
    for local_rank, uuids in enumerate(shown):
        machine.uuids, machine.visible = uuids, None
        for _ in range(2):  # before and after the ranks are joined
            devices.claim(local_rank)
        found.append(devices.claimed(local_rank, 4))
    return found


@pytest.mark.parametrize(
    ("shown", "gpus"),
    [
        pytest.param(["abcd"] * 4, [0, 1, 2, 3], id="all of the host to each, as horovodrun and srun --gres do"),
        pytest.param(["a", "b"], [0, 0], id="one to each, which it calls 0: srun --gpus-per-task=1, containers, MIG"),
        pytest.param(["ab", "cd", "ef"], [0, 1, 0], id="two to each: srun --gpus-per-task=2"),
        pytest.param(["", ""], [None, None], id="none"),
    ],
)
def test_each_rank_claims_a_gpu_of_its_own(machine, shown, gpus, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = claimed_by(machine, shown)
    assert [device.gpu for device in found] == gpus
    devices.check(found)
    claims = [(what, f"GPU:{gpu}") for gpu in gpus if gpu is not None for what in 2 * ("visible", "growth")]
    assert machine.asked == claims
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-a,MIG-b")
    devices.claim(1)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "MIG-b"  # before CUDA reads it, and for programs that this one starts


@pytest.mark.parametrize(
    ("shown", "complaint"),
    [
        pytest.param(["ab"] * 3, "ranks 0 and 2 would share one GPU of .* sees 2; start at most", id="too many ranks"),
        pytest.param(["c", "bc"], "ranks 0 and 1 would share one GPU of", id="control groups that overlap"),
        pytest.param(["a", ""], "rank 1 on .* sees no GPU, and others have one", id="one without"),
    ],
)
def test_ranks_that_share_a_gpu_are_refused_by_name(machine, shown, complaint, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UserError, match=complaint) as caught:
        devices.check(claimed_by(machine, shown))
    assert "\n" not in str(caught.value)


@pytest.fixture
def lost(machine, monkeypatch):
    """Asks for the GPUs that are lost; what nvidia-smi lists and what TensorFlow says of its libraries are made up."""
    found = cuda.Registration(0, True, {}, {"libcudnn.so.9": "no such file"}, "")
    monkeypatch.setattr(cuda, "examine", lambda: found)
    monkeypatch.setattr(devices, "by_nvidia_smi", lambda quantity: listed)
    monkeypatch.setattr(tf.sysconfig, "get_build_info", lambda: {"is_cuda_build": True})
    listed = []

    def ask(shown, by_nvidia_smi=(), nccl=False):
        listed[:] = by_nvidia_smi
        if shown is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
        monkeypatch.setattr(devices.backend, "has_nccl", lambda: nccl)
        devices.lost_gpus.cache_clear()
        return devices.lost_gpus()

    yield ask
    devices.lost_gpus.cache_clear()


def test_gpus_that_are_asked_for_and_not_registered_are_lost_unless_who_hides_them_means_the_cpu(lost):
    for shown in ("0,0", "GPU-a", "MIG-a"):
        assert "libcudnn.so.9" in lost(shown) and shown in lost(shown)
    with pytest.raises(UserError, match="rank 1 on b: .*libcudnn.so.9.*; CUDA_VISIBLE_DEVICES= says"):
        devices.check([of("a", 0), dataclasses.replace(of("b", None), lost=lost("0"))])
    assert "NoDevFiles" in lost("NoDevFiles", ["A100"])  # of Slurm, in a job that has asked for none
    assert "NCCL" in lost(None, nccl=True)
    assert lost("", ["A100"], nccl=True) == lost("-1", ["A100"], nccl=True) == ""


def of(host: str, gpu: int | None) -> Device:
    name = "" if gpu is None else "A100"
    return Device(host, gpu, 0 if gpu is None else 4, "" if gpu is None else str(gpu), name, 4)


def test_a_limit_replaces_growth_and_ranks_that_share_a_gpu_share_its_memory(machine, monkeypatch):
    devices.check(claimed_by(machine, ["a", "a"]), share_gpu=True)
    machine.uuids = "ab"
    devices.claim(1)
    devices.limit_memory(3000)
    devices.claim(1)  # by Horovod's numbers
    assert [each.memory_limit for each in machine.limits["GPU:1"]] == [3000]
    monkeypatch.setattr(devices, "local_size", lambda: 3)
    monkeypatch.setattr(cuda, "smallest_memory", lambda: 81559)
    devices.claim(0)
    devices.limit_memory(None, shared=True)
    assert [each.memory_limit for each in machine.limits["GPU:0"]] == [36701]
    machine.is_open = True
    with pytest.raises(UserError, match="--gpu-memory-limit 4000: this process has opened .*, in an earlier run, or"):
        devices.limit_memory(4000)
