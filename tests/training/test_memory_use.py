"""What a run says about its memory: before a stage, after it, and when there is too little.

Modules: training.memory.estimate, training.memory.device, training.out_of_memory.
"""

import contextlib
import itertools
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from building import tiny_run
from hvdgan.cli.config import Config
from hvdgan.cli.errors import RunError
from hvdgan.distributed.ranks import Ranks
from hvdgan.distributed.slices import bounds
from hvdgan.networks.devices import device
from hvdgan.training import memory_use
from hvdgan.training.memory.device import peak_memory, room
from hvdgan.training.memory.estimate import Estimate, estimate, in_words
from hvdgan.training.memory.liveness import Peak
from hvdgan.training.monitoring.record import Record
from hvdgan.training.observations import Observations
from hvdgan.training.out_of_memory import MemoryGuard
from hvdgan.training.resuming.resume_point import ResumePoint
from hvdgan.training.steps.skipping import changed_by
from hvdgan.training.summary import announce
from launching import EACH_CONTROLLER, launcher, run, train
from tiny import Staged, TinyOptions

ARGUMENTS = "--recipe hungry:Hungry --image-size 8 --global-batch-size 16 --report never --run-dir run".split()


def test_the_variables_are_counted_to_the_byte():
    built = tiny_run(options=TinyOptions(norm="batch"))
    state = built.state
    weights = sum(np.prod(v.shape) for network in state.networks.values() for v in network.trainable_variables)
    others = sum(np.prod(v.shape) for network in state.networks.values() for v in network.non_trainable_variables)
    averages = sum(np.prod(v.shape) for v in state.networks["generator"].variables)
    of_optimizers = [variable for each in state.optimizers.values() for variable in each.variables]
    scalars = sum(8 if variable.dtype == "int64" else 4 for variable in of_optimizers if variable.shape == ())
    (estimate,) = built.estimates
    # A weight, its two moments; the others; the averages.
    assert estimate.state == 4 * (3 * weights + others + averages) + scalars
    largest = max(sum(np.prod(v.shape) for v in n.trainable_variables) for n in state.networks.values())
    assert estimate.gradients == 4 * largest
    assert 4 * largest < estimate.peak.total


@pytest.mark.parametrize("micro_batches", [2, 4, 8])
def test_other_micro_batches_are_estimated_without_a_trace(micro_batches):
    size = {"image_size": 32, "global_batch_size": 64}
    (whole,) = tiny_run(**size).estimates
    (traced,) = tiny_run(**size, accumulate=micro_batches).estimates
    assert 0.7 < whole.accumulated(micro_batches) / traced.total < 1.4
    assert traced.accumulated(micro_batches) == traced.total


def test_the_smallest_number_of_micro_batches_that_fits():
    estimate = Estimate(100, Peak(scaled=1200, fixed=50), 50, samples=12, micro_batches=1)
    assert estimate.total == 1350
    sizes = {2: 6, 3: 4, 4: 3, 6: 2, 12: 1}
    assert [estimate.fitting(room, sizes) for room in (1000, 800, 600, 500, 301, 299)] == [2, 2, 3, 4, 12, None]
    assert estimate.fitting(None, sizes) == 2 and estimate.fitting(None, {}) is None


@pytest.mark.parametrize(
    ("batch", "size", "accumulate", "slice_unit", "expected"),
    [
        (24, 2, 1, 0, {2: 6, 3: 4, 4: 3, 6: 2, 12: 1}),
        (24, 2, 4, 0, {6: 2, 12: 1}),
        (8, 8, 1, 0, {}),
        (64, 3, 1, 1, {2: 11, 4: 6, 8: 3, 16: 2}),
        (64, 3, 4, 4, {8: 3, 16: 2}),
    ],
)
def test_the_micro_batches_that_are_suggested_are_possible(batch, size, accumulate, slice_unit, expected):
    """In an elastic run of 3 ranks a slice of 21 samples can be divided by 3, but the batch of 64 cannot."""
    config = Config(global_batch_size=batch, accumulate=accumulate)
    built = SimpleNamespace(config=config, ranks=Ranks(size=size, slice_unit=slice_unit))
    found = memory_use.micro_batches(built)
    assert found == expected
    for value, samples in found.items():
        borders = bounds(batch, size, value if slice_unit else 0)
        assert max(b - a for a, b in itertools.pairwise(borders)) == value * samples


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1 kB"), (1.234e9, "1.2 GB"), (2**50, "1.1 PB"), (99.6e6, "100 MB")],
)
def test_bytes_in_words(count, words):
    assert in_words(count) == words


def test_a_stage_that_will_not_fit_is_a_warning(monkeypatch):
    built = tiny_run(global_batch_size=64, image_size=32)
    assert not list(memory_use.too_large(built))
    (estimate,) = built.estimates
    free = estimate.accumulated(4) - estimate.state
    monkeypatch.setattr(memory_use, "room", lambda _: free)
    (line,) = memory_use.too_large(built)
    needed = re.escape(in_words(estimate.peak.total))
    assert re.fullmatch(
        rf"warning: stage adversarial needs about {needed} of memory besides the .* of its variables, and "
        rf"{re.escape(in_words(free))} are left for rank 0; try --accumulate 4 \(about .*\), --remat, a smaller "
        "--global-batch-size or smaller networks",
        line,
    )
    monkeypatch.setattr(memory_use, "room", lambda _: 1000)
    (line,) = memory_use.too_large(built)
    assert "try --remat, a smaller --global-batch-size" in line
    monkeypatch.setattr(memory_use, "room", lambda _: None)
    assert not list(memory_use.too_large(built))


def test_the_room_of_a_rank_is_its_share_of_the_host():
    built = tiny_run()
    free = room(built.ranks)
    assert free is not None and 0 < free < 2**50
    grown = np.ones(2**25)
    assert peak_memory()["peak_rss_bytes"] > grown.nbytes


def test_the_room_of_a_gpu_is_known_by_a_limit_or_by_what_it_has_refused_or_by_nvidia_smi(tmp_path, monkeypatch):
    """Without a GPU: TensorFlow's answers are pretended."""
    limits: list = []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind])
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda gpu: {"device_name": "NVIDIA H100"})
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [kind])
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [kind])
    monkeypatch.setattr(tf.config, "get_logical_device_configuration", lambda gpu: limits)
    monkeypatch.setattr(tf.config.experimental, "get_memory_info", lambda name: {"current": 2**20, "peak": 2**22})
    assert room(Ranks()) is None
    assert room(Ranks(), failed=True) == 3 * 2**20
    nvidia_smi = tmp_path / "nvidia-smi"
    nvidia_smi.write_text("#!/bin/sh\necho GPU-0, NVIDIA H100, 70\necho GPU-1, NVIDIA H100, 50\n")
    nvidia_smi.chmod(0o755)
    # What TensorFlow has kept of freed tensors is room too.
    assert room(Ranks()) == room(Ranks(), failed=True) == (50 + 3) * 2**20
    limits.append(tf.config.LogicalDeviceConfiguration(memory_limit=8))
    assert room(Ranks()) == room(Ranks(), failed=True) == 7 * 2**20


def test_the_old_values_of_an_update_count_where_it_is_selected():
    sizes = []
    for kind in (device.CPU, device.GPU):
        with device.computing_as(kind):
            built = tiny_run(global_batch_size=16)
            sizes.append(built.estimates[0].peak.fixed)
        changed = sum(
            np.prod(variable.shape) * 4 for variable in changed_by(built.state, built.schedule.stages[0].updates[0])
        )
    assert sizes[1] >= sizes[0] + changed


def test_a_gpu_holds_batches_and_gradients_that_are_reduced(monkeypatch):
    """Four batches whose verdicts wait, that of the step, and four that are copied ahead."""
    monkeypatch.delenv("HOROVOD_FUSION_THRESHOLD", raising=False)

    def estimates(kind, size):
        with device.computing_as(kind):
            built = tiny_run()
            return [
                estimate(built.state, built.steps[0], source, Ranks(size=size)).peak
                for source in (built.source, Batchless())
            ]

    with_batches, without = estimates(device.GPU, 1)
    pixels, label, number = 8 * 8, 8, 8
    assert with_batches - without == Peak(fixed=9 * 16 * (pixels + label + number))
    assert estimates(device.GPU, 2)[0] - with_batches == Peak(fixed=128 * 2**20)
    on_host = [peak for size in (1, 2) for peak in estimates(device.CPU, size)]
    assert on_host == on_host[:1] * 4


class Batchless:
    """Data whose samples have no numbers."""

    record_shape, dtype = (0,), np.uint8

    def facts(self, indices):
        return {}


def test_each_stage_is_estimated_at_the_start_and_measured_at_its_end(tmp_path):
    train(tmp_path, *"--recipe tiny:Staged --image-size 8 --global-batch-size 16 --run-dir run".split(), ranks=2)
    log = (tmp_path / "run" / "log.txt").read_text()
    assert len(re.findall(r"; about [\d.]+ kB of memory", log)) == 3, log
    for stage in ("generator", "discriminator", "joint"):
        assert re.search(
            rf"stage {stage}: peak memory of a process [\d.]+ GB, on rank [01]; estimated for the steps [\d.]+ kB, "
            "TensorFlow itself not counted",
            log,
        ), log


def test_the_peak_of_a_gpu_is_that_of_the_stage(tmp_path, monkeypatch):
    """Without a GPU: TensorFlow's answers are pretended."""
    built = tiny_run(Staged)
    most = {"current": 0, "peak": 9e9}
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [kind])
    monkeypatch.setattr(tf.config.experimental, "get_memory_info", lambda name: dict(most))
    monkeypatch.setattr(tf.config.experimental, "reset_memory_stats", lambda name: most.update(peak=0))
    with contextlib.closing(Record(tmp_path, is_root=True, start_step=0, total_steps=8)) as record:
        observations = Observations(built, ResumePoint(), record)
        step = 0
        for stage, size in zip(built.schedule.stages, (3e9, 1e9, 2e9), strict=True):
            at = built.schedule.at(step)
            observations.begin_stage(at)
            most["peak"] = max(most["peak"], size)
            observations.end_stage(at)
            step += stage.steps
    lines = (tmp_path / "log.txt").read_text().splitlines()
    found = [re.search(r"stage (\w+): peak memory of a GPU (\d) GB, on rank 0;", line).groups() for line in lines]
    assert found == [("generator", "3"), ("discriminator", "1"), ("joint", "2")]


def test_out_of_memory_is_one_line(tmp_path):
    done = run([sys.executable, "-m", "hvdgan.train", *ARGUMENTS], tmp_path, forked=True, HVDGAN_HUNGRY="0")
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("hvdgan: ")]
    assert re.fullmatch(
        r"hvdgan: rank 0 is out of memory in step 2, stage adversarial: no room for a tensor of shape "
        r"\(281474976710656\) and type float for \S*; the estimate was [\d.]+ [kM]B; "
        r"try --accumulate 2 \(about [\d.]+ [kM]B\), --remat, a smaller --global-batch-size or smaller networks",
        line,
    ), line
    assert "stopped: rank 0 is out of memory" in (tmp_path / "run" / "log.txt").read_text()


@pytest.mark.parametrize("controller", EACH_CONTROLLER)
def test_a_rank_out_of_memory_ends_the_others(tmp_path, controller):
    command = [*launcher(2, controller), sys.executable, "-m", "hvdgan.train", *ARGUMENTS, "--peer-timeout", "20"]
    done = run(command, tmp_path, forked=True, HVDGAN_HUNGRY="1")
    # horovodrun has a traceback of its own, which no rank has printed.
    assert done.returncode != 0 and not re.search(r"^\[.*Traceback", done.stderr, re.MULTILINE), done.stderr
    assert "hvdgan: rank 1: rank 1 is out of memory in step 2, stage adversarial" in done.stderr, done.stderr
    if controller == "gloo":  # mpirun ends the others itself, often before they can say why
        assert re.search(r"hvdgan: rank 0: .*rank 1 \(.*\) has failed and reported its error", done.stderr), done.stderr


def test_memory_of_python_too():
    built = tiny_run()

    def compute(step, stage_step, data):
        raise MemoryError("Unable to allocate 3 EiB")

    ((step, at, guarded_compute),) = MemoryGuard(built).guarded([(7, built.schedule.at(0), compute)])
    with pytest.raises(
        RunError, match="rank 0 is out of memory in step 7, stage adversarial: Unable to allocate 3 EiB"
    ):
        guarded_compute(step, at.stage_step, {})


def test_before_and_after_a_step_its_stage_is_named():
    """A batch finds no room beside the steps of its stage; an evaluation is not divided by --accumulate."""
    built = tiny_run(Staged, global_batch_size=64)
    error = tf.errors.ResourceExhaustedError(None, None, "failed to allocate memory " + 300 * "x")
    guard = MemoryGuard(built)
    apart = "this was not in a step, so --accumulate would not help: free memory, or try smaller networks"
    said = str(guard.failure(error))
    assert re.fullmatch(rf"rank 0 is out of memory: failed to allocate memory x+\.\.\.; {apart}", said), said

    def compute(step, stage_step, data):
        return {}, {}

    starts = list(itertools.accumulate((stage.steps for stage in built.schedule.stages), initial=0))[:-1]
    sizes = [in_words(each.total) for each in built.estimates]
    assert len(set(sizes)) == 3
    steps = [(step, built.schedule.at(step), compute) for step in starts]
    for (step, at, guarded_compute), size in zip(guard.guarded(steps), sizes, strict=True):
        where = f"step {step}, stage {at.stage.name}: failed to allocate memory x+\\.\\.\\."
        said = str(guard.failure(error))
        assert re.fullmatch(
            rf"rank 0 is out of memory before {where}; the estimate was {size}; try --accumulate .*", said
        ), said
        guarded_compute(step, at.stage_step, {})
        said = str(guard.failure(error))
        assert re.fullmatch(rf"rank 0 is out of memory after {where}; {apart}", said), said


def test_other_ranks_of_an_elastic_run_are_warned_again(tmp_path, monkeypatch, capsys):
    """Fewer ranks have larger slices."""
    built = tiny_run(global_batch_size=64, image_size=32)
    monkeypatch.setattr(memory_use, "room", lambda _: 1000)
    with contextlib.closing(Record(tmp_path, is_root=True, start_step=3, total_steps=8)) as record:
        announce(built, ResumePoint(3, 192, "run", None, {}, recovered=True), record)
    first, warning = (tmp_path / "log.txt").read_text().splitlines()
    assert "1 rank(s) resume at step 3" in first and "warning: stage adversarial needs about" in warning
