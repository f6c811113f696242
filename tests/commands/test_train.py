"""The command hvdgan.train, end to end, in processes of its own.

Modules: training.session
"""

import contextlib
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import termios
from pathlib import Path

import horovod
import numpy as np
import pytest
from PIL import Image

from hvdgan import inspect
from hvdgan.diagnostics.installation import package_version
from launching import EACH_CONTROLLER, HAS_MPI, ROOT, SECONDS, environment, launcher, run, train
from saved import latest, manifest, measured, records, state, tensors

TINY = ["--recipe", "tiny:Tiny", "--image-size", "8", "--global-batch-size", "16"]
PYTHON = [sys.executable, "-m", "hvdgan.train"]


@pytest.mark.long
@pytest.mark.parametrize(("columns", "judge"), [(80, "judg"), (120, "judge")])
def test_a_terminal_shows_speed_and_losses_which_the_log_has_too(tmp_path, columns, judge):
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, columns))
    process = subprocess.Popen([*PYTHON, *TINY, "--steps", "300"], cwd=tmp_path, env=environment(), stderr=slave)
    os.close(slave)
    shown = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while piece := os.read(master, 4096):
            shown += piece
    os.close(master)
    assert process.wait(timeout=SECONDS) == 0
    bars = [line for line in shown.decode().replace("\n", "\r").split("\r") if " left, " in line]
    assert bars and max(map(len, bars)) <= columns
    assert re.match(rf"adversarial 300/300 100% \S+ left, [\d.]+ images/s fool [\d.]+ {judge} [\d.]+ ", bars[-1])
    assert not shown.decode().rpartition(" left, ")[2].split("\r")[1].strip()  # its last drawing is wiped out
    start = shown.decode().partition("start 0/300")[0].split("\r")  # one line, which is wiped out in the end
    assert not "".join(start[-3:]).strip()
    doing = [text.rpartition(" (")[0] for text in start if " (" in text]
    assert [text for text in doing if "update" in text] == [
        f"tracing stage adversarial, update {name}" for name in ("judge", "fool")
    ]
    log = (tmp_path / "runs" / "tiny.Tiny" / "log.txt").read_text()
    lines = re.findall(r" step (\d+)/300 adversarial fool/loss [\d.]+ judge/loss [\d.]+ [\d.]+ images/s, ", log)
    assert lines == ["50", "100", "150", "200", "250", "300"]
    assert re.findall(r" samples after (\d+) steps: (\S+)", log) == [
        ("100", "runs/tiny.Tiny/samples/step-00000100.png")
    ]


def test_a_full_disk_under_the_log_of_a_job_is_no_failure_of_the_run(tmp_path):
    """Nor is a terminal that goes away, as after `disown` (EIO in place of ENOSPC)."""
    with open("/dev/full", "w") as full:
        words = [*PYTHON, *TINY, "--steps", "300", "--report", "never", "--run-dir", "run"]
        assert subprocess.run(words, cwd=tmp_path, env=environment(), stderr=full, timeout=120).returncode == 0
    assert latest(tmp_path / "run") == 300
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "done: 300 steps" in log and "stopped: " not in log
    assert log.count("warning: standard error cannot be written: [Errno 28] No space left on device; the run") == 1


def test_a_run_folder_holds_what_the_readme_says(tmp_path):
    train(tmp_path, *TINY, "--steps", "6", "--log-every", "2", "--sample-every", "3", "--checkpoint-every", "3")
    run_dir = tmp_path / "runs" / "tiny.Tiny"
    found = {path.relative_to(run_dir).as_posix() for path in run_dir.rglob("*") if path.is_file()}
    (events,) = [name for name in found if name.startswith("tensorboard/events")]
    checkpoints = {f"checkpoints/step-0000000{step}.safetensors" for step in (3, 6)}
    samples = {f"samples/{name}.png" for name in ("real", "step-00000000", "step-00000003", "step-00000006")}
    rest = {"config.json", "metrics.jsonl", "log.txt", "events.jsonl", ".lock", "checkpoints/latest"}
    assert found == {events, *checkpoints, *samples, *rest}
    assert [(each["step"], each["stage"], each["stage_step"]) for each in records(run_dir)] == [
        (step, "adversarial", step) for step in (2, 4, 6)
    ]
    for record in records(run_dir):
        assert all(np.isfinite(record[name]) for name in ("between_seconds", "judge/loss", "judge/real", "fool/loss"))
        assert 0 <= record["wait_seconds"] <= record["step_seconds"]
        assert record["images_per_sec"] == pytest.approx(16 / record["step_seconds"], rel=1e-3)
    line = r" step (\d)/6 adversarial fool/loss [\d.]+ judge/loss [\d.]+ [\d.]+ images/s, "
    assert re.findall(line, (run_dir / "log.txt").read_text()) == ["2", "4", "6"]
    assert Image.open(run_dir / "samples" / "step-00000006.png").size == (8 * 10 - 2, 8 * 10 - 2)
    config = json.loads((run_dir / "config.json").read_text())
    assert (config["recipe"], config["channels"], config["steps"], config["seed"]) == ("tiny:Tiny", None, 6, 0)
    saved = manifest(run_dir, 6)
    assert (saved["step"], saved["stage"], saved["stage_step"], saved["samples_seen"]) == (6, "adversarial", 6, 96)
    assert saved["config"] == config


@pytest.mark.parametrize("controller", EACH_CONTROLLER)
def test_two_ranks_of_8_images_and_one_of_16_train_the_same_network(tmp_path, capsys, controller):
    """hvdgan.inspect tells how long their steps take, without the first record, in which graphs are traced."""
    arguments = "--nf 4 --norm none --global-batch-size 16 --max-steps 20 --log-every 10 --run-dir".split()
    train(tmp_path, *arguments, "one")
    train(tmp_path, *arguments, "two", ranks=2, controller=controller)
    one, two = (tensors(tmp_path / name, 20) for name in ("one", "two"))
    assert one.keys() == two.keys()
    for name in one:
        if name.startswith(("networks/", "ema/")):
            assert np.linalg.norm(two[name] - one[name]) <= 1e-4 * np.linalg.norm(one[name]), name
    losses = [records(tmp_path / name)[-1]["discriminator/loss"] for name in ("one", "two")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert [manifest(tmp_path / name, 20)["samples_seen"] for name in ("one", "two")] == [320, 320]
    one_grid, two_grid = (Image.open(tmp_path / name / "samples" / "step-00000020.png") for name in ("one", "two"))
    assert np.max(np.abs(np.asarray(one_grid, np.int16) - np.asarray(two_grid, np.int16))) <= 1
    assert inspect.main([str(tmp_path / "two")]) == 0
    shown, last = capsys.readouterr().out, records(tmp_path / "two")[-1]
    of_reduce = "all-reduces (exchange, and waiting for slower ranks)"
    parts = {"compute": "computing", "wait": "waiting for data", "reduce": of_reduce}
    for part, what in parts.items():
        least, median, most = (f"{1e3 * last[f'{part}_seconds_{how}']:.3g}" for how in ("min", "median", "max"))
        assert f"{what} for {least}, {median}, {most} ms a step (least, median, most)" in shown


@pytest.mark.parametrize(
    ("ranks", "stop", "more"),
    [
        pytest.param(1, 20, [], marks=pytest.mark.core),
        pytest.param(2, 20, ["--sync-batch-norm", "--deterministic"], marks=pytest.mark.long),
        pytest.param(3, 17, ["--deterministic"], marks=pytest.mark.long),
    ],
)
def test_a_resumed_run_ends_with_the_bits_of_an_uninterrupted_one(tmp_path, ranks, stop, more):
    """BatchNorm, moving averages, both optimizers' slots and samples, over three stages, stopped anywhere."""
    arguments = ["--recipe", "tiny:Staged", "--image-size", "8", "--global-batch-size", "12", "--norm", "batch"]
    arguments += ["--steps", "14", "--log-every", "10", "--checkpoint-every", "7", "--keep", "0", *more]
    train(tmp_path, *arguments, "--run-dir", "whole", "--max-steps", "40", ranks=ranks)
    train(tmp_path, *arguments, "--run-dir", "parts", "--max-steps", str(stop), ranks=ranks)
    done = train(tmp_path, *arguments, "--run-dir", "parts", "--max-steps", "40", ranks=ranks)
    assert f"resuming at step {stop} of 40" in done.stderr
    assert state(tmp_path / "whole", 40) == state(tmp_path / "parts", 40)
    # A stage changes nothing of what it does not own, also through samples and checkpoints, and where the mean of three
    # equal numbers need not be that number.
    first, later = tensors(tmp_path / "whole", 14), tensors(tmp_path / "whole", 28)
    generator = [name for name in first if name.split("/")[1] == "generator" and not name.endswith("learning_rate")]
    assert any("moving_mean" in name for name in generator)
    assert not [name for name in generator if later[name].tobytes() != first[name].tobytes()]
    log = (tmp_path / "whole" / "log.txt").read_text()
    assert re.search(r"stage generator: peak memory of a process [\d.]+ GB, on rank [012]$", log, re.MULTILINE), log
    last = "samples/step-00000040.png"
    assert (tmp_path / "whole" / last).read_bytes() == (tmp_path / "parts" / last).read_bytes()
    if stop % 10 == 0:
        whole = measured(tmp_path / "whole")
        assert whole == measured(tmp_path / "parts") and [record["step"] for record in whole] == [10, 20, 30, 40]


@pytest.mark.long
def test_stages_are_chosen_on_the_command_line(tmp_path):
    staged = ["--recipe", "tiny:Resetting", *TINY[2:], "--stages", "joint=2,generator=3,joint=4", "--log-every", "1"]
    train(tmp_path, *staged, "--run-dir", "whole")
    stages = [(record["stage"], record["stage_step"]) for record in records(tmp_path / "whole")]
    chosen = {"joint": 2, "generator": 3}, {"joint": 4}
    assert stages == [(name, step + 1) for part in chosen for name, count in part.items() for step in range(count)]
    # The last stage has begun with new optimizers, also where the run was stopped just before it.
    train(tmp_path, *staged, "--run-dir", "parts", "--max-steps", "5")
    train(tmp_path, *staged, "--run-dir", "parts")
    iterations = [tensors(tmp_path / "parts", step)["optimizers/generator/iteration"] for step in (5, 9)]
    assert iterations == [5, 4] and state(tmp_path / "whole", 9) == state(tmp_path / "parts", 9)


def test_only_rank_0_writes_and_speaks(tmp_path):
    """Each rank in a folder of its own: whatever it wrote by a relative path would be there."""
    script = 'mkdir "rank$HOROVOD_RANK" && cd "rank$HOROVOD_RANK" && exec "$@"'
    done = run([*launcher(2), "sh", "-c", script, "sh", *PYTHON, *TINY, "--run-dir", "run"], tmp_path, forked=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "rank0" / "run" / "metrics.jsonl").exists()
    assert list((tmp_path / "rank1").iterdir()) == []
    assert "[0]<stderr>" in done.stderr and "[1]<std" not in done.stderr + done.stdout


def test_ranks_with_other_settings_refuse_to_run_and_name_the_field(tmp_path):
    script = 'if [ "$HOROVOD_RANK" = 1 ]; then set -- "$@" --learning-rate 0.01; fi; exec "$@"'
    done = run([*launcher(2), "sh", "-c", script, "sh", *PYTHON, *TINY], tmp_path, forked=True)
    assert done.returncode != 0
    # The launcher may end a rank that has not spoken yet as soon as the other one has ended.
    assert re.search("rank [01]: the ranks disagree on what to train: learning_rate is", done.stderr), done.stderr
    assert "<stderr>:Traceback" not in done.stderr and not (tmp_path / "runs").exists()


@pytest.mark.skipif(not HAS_MPI, reason="no MPI here, or Horovod was built without it")
def test_mpirun_starts_it_too(tmp_path):
    done = run(["mpirun", "-np", "2", "--oversubscribe", *PYTHON, *TINY], tmp_path, forked=True)
    assert done.returncode == 0, done.stderr
    assert "2 rank(s) on 1 host(s), launcher mpirun" in done.stderr


def test_a_dry_run_tells_everything_once_and_writes_nothing(tmp_path):
    arguments = ["--recipe", "tiny:Staged", "--image-size", "8", "--norm", "batch", "--dry-run"]
    done = train(tmp_path, *arguments, ranks=2)
    shown = done.stdout.replace("[0]<stdout>:", "")
    # dense 8x16 + 16, BatchNorm 2x16, dense 16x64 + 64 = 1,264 trainable; the statistics are 2x16
    assert "generator 1,264 trainable parameters, 32 other" in shown
    assert "judge owns discriminator and all-reduces 4,356 bytes" in shown
    assert " ".join(shown.split()).count("fool owns generator and all-reduces 5,056 bytes") == 2
    assert "2 rank(s) on 1 host(s)" in shown and "32 images each per step" in shown
    assert "run folder runs/tiny.Staged: ends at step 12; --dry-run writes nothing; --print-config has" in shown
    shown = train(tmp_path, *arguments, "--compression", "fp16").stdout
    assert "\none process; 64 images per step\n" in shown and "all-reduces" not in shown
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def without_horovod(tmp_path):
    """PYTHONPATH of a place where Horovod cannot be imported, as TensorFlow says it where MPI's library is missing."""
    package = tmp_path / "blocked" / "horovod"
    package.mkdir(parents=True)
    broken = "import tensorflow as tf\nraise tf.errors.NotFoundError(None, None, 'libmpi.so.40: no such file')\n"
    (package / "__init__.py").write_text(broken)
    return os.pathsep.join(map(str, [package.parent, ROOT, ROOT / "tests" / "support"]))


@pytest.mark.long
def test_one_process_needs_no_horovod_and_several_are_refused_without_it(tmp_path, without_horovod):
    train(tmp_path, *TINY, PYTHONPATH=without_horovod)
    assert (tmp_path / "runs" / "tiny.Tiny" / "metrics.jsonl").exists()
    launched = {"HOROVOD_SIZE": "2", "HOROVOD_RANK": "1"}
    done = run([*PYTHON, *TINY, "--run-dir", "new"], tmp_path, PYTHONPATH=without_horovod, **launched)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and not (tmp_path / "new").exists()
    assert done.stderr.startswith("hvdgan: rank 1: horovodrun started 2 processes, and Horovod cannot be imported here")


GLOO = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}
NO_PMI = {"SLURM_MPI_TYPE": "pmi2", "PMI_RANK": "1", "PMI_SIZE": "2"}


@pytest.mark.parametrize(
    ("env", "complaint"),
    [
        (GLOO, "srun started 2 processes, and Horovod here works without MPI: every process would train alone"),
        pytest.param(
            NO_PMI,
            "srun started 2 processes that Open MPI cannot bring together (--mpi=pmi2); start with srun --mpi=pmix",
            marks=pytest.mark.skipif(not HAS_MPI, reason="no MPI here, or Horovod was built without it"),
        ),
    ],
)
def test_tasks_of_srun_that_cannot_find_each_other_are_refused(tmp_path, env, complaint):
    """Every task would silently be rank 0 of 1, or end in a message of Open MPI's."""
    done = run([*PYTHON, *TINY], tmp_path, forked=True, SLURM_STEP_NUM_TASKS="2", SLURM_PROCID="1", **env)
    assert done.returncode == 2
    assert f"hvdgan: rank 1: {complaint}" in done.stderr and done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_a_horovod_built_for_another_tensorflow_is_refused(tmp_path):
    package = tmp_path / "other" / "horovod"
    shutil.copytree(Path(horovod.__file__).parent, package, copy_function=os.symlink)
    metadata = json.loads((package / "metadata.json").read_text())
    (package / "metadata.json").unlink()
    (package / "metadata.json").write_text(json.dumps({**metadata, "tensorflow": "2.15.1"}))
    path = os.pathsep.join(map(str, [package.parent, ROOT, ROOT / "tests" / "support"]))
    done = run([*PYTHON, *TINY], tmp_path, PYTHONPATH=path, HOROVOD_SIZE="2", HOROVOD_RANK="0")
    here = package_version("tensorflow")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert f"Horovod was built for TensorFlow 2.15.1, and TensorFlow {here} is installed" in done.stderr


def test_another_number_of_ranks_continues_with_the_same_samples(tmp_path):
    """The mean label of every batch tells which images it has; equal weights tell that latents are the same."""
    arguments = ["--recipe", "tiny:Labelled", *TINY[2:], "--steps", "12", "--log-every", "1"]
    train(tmp_path, *arguments, "--run-dir", "whole")
    for last, ranks in (("6", 2), ("12", 1)):
        train(tmp_path, *arguments, "--run-dir", "parts", "--max-steps", last, ranks=ranks)
    labels = [[record["judge/label"] for record in records(tmp_path / name)] for name in ("whole", "parts")]
    assert len(labels[0]) == 12 and labels[0] == pytest.approx(labels[1], abs=1e-5)
    whole, parts = (tensors(tmp_path / name, 12) for name in ("whole", "parts"))
    for name, value in whole.items():
        if name.startswith("networks/"):
            assert np.linalg.norm(parts[name] - value) <= 1e-4 * np.linalg.norm(value), name
