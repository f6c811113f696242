"""The parts of benchmarks/gpu.sh: what each runs, compares and reports."""

import dataclasses
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from launching import ROOT, run, train

sys.path.insert(0, str(ROOT / "benchmarks"))
sys.path.insert(0, str(ROOT / "benchmarks" / "peers"))
from gpu import device_tests, equality, options, peers, processes, recipes, scaling, setting
from gpu.check import Check

ON_CPU = setting.Setting(
    out=Path("out"),
    cpu=True,
    quick=True,
    ranks=(1, 2),
    here=2,
    nodes=1,
    gloo=False,
    recipes=("dcgan",),
    precisions=("float32",),
    timeout=60.0,
)


@pytest.mark.parametrize(
    ("here", "nodes", "ranks", "batch"),
    [
        (1, 1, (1,), 16),
        (3, 1, (1, 2, 3), 18),
        (6, 1, (1, 2, 4, 6), 24),
        (8, 1, (1, 2, 4, 8), 16),
        (1, 3, (1, 2, 3), 18),
        (6, 2, (1, 2, 4, 6, 8, 12), 24),
    ],
)
def test_numbers_of_ranks_end_with_all_gpus_of_a_host_and_of_all(here, nodes, ranks, batch):
    assert setting.numbers_of_ranks(here, nodes) == ranks
    given = dataclasses.replace(ON_CPU, ranks=ranks, here=here, nodes=nodes)
    assert given.batch_of_all(16) == batch and not any(batch % count for count in ranks)
    assert max(program.ranks for program in peers.programs_of(given)) == here


@pytest.mark.parametrize(
    ("here", "nodes", "ranks", "expected"),
    [
        (8, 1, (1, 2, 4, 8), [((1, 2, 4, 8), 1)]),
        (4, 2, (1, 2, 4, 8), [((1, 2, 4), 1), ((1, 2, 4, 8), 2)]),
        (1, 2, (1, 2), [((1, 2), 2)]),
    ],
)
def test_ranks_of_one_host_are_measured_on_one_host(here, nodes, ranks, expected):
    assert scaling.benches(dataclasses.replace(ON_CPU, here=here, nodes=nodes, ranks=ranks)) == expected


def test_in_slurm_the_bench_spreads_its_ranks_over_as_many_hosts(no_launcher, tmp_path):
    """Two ranks divide the 8 cores of one host, or have those of two. This srun writes its words down and fails."""
    (tmp_path / "srun").write_text('#!/bin/sh\necho "$@" >>"$SAID"\nexit 1\n')
    (tmp_path / "srun").chmod(0o755)
    no_launcher.setenv("PATH", str(tmp_path), prepend=":")
    facts = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_CPUS_PER_NODE": "8(x2)"}
    for name, value in {**facts, "SAID": str(tmp_path / "said")}.items():
        no_launcher.setenv(name, value)
    given = dataclasses.replace(ON_CPU, out=tmp_path, here=2, nodes=2, ranks=(1, 2))
    found = list(scaling.checks(given))
    assert [(each.name, each.verdict) for each in found] == [
        ("float32, 1 host", "failed"),
        ("float32, 2 hosts", "failed"),
    ]
    launched = [words.split(" /")[0] for words in (tmp_path / "said").read_text().splitlines()]
    first = "--mpi=pmix --kill-on-bad-exit=1 --nodes=1 --ntasks=1 --cpus-per-task={}"
    assert launched == [first.format(4), first.format(8)]


def test_the_report_of_pytest_becomes_checks(tmp_path):
    code = "import pytest\ndef test_a(): pass\ndef test_b(): assert 1 == 2\n"
    code += "@pytest.mark.skip('no GPU')\ndef test_c(): pass\n"
    (tmp_path / "test_some.py").write_text(code)
    run([sys.executable, "-m", "pytest", "-q", "--junitxml=a.xml", "test_some.py"], tmp_path)
    found = {each.name: each for each in device_tests.read(tmp_path / "a.xml")}
    assert [each.verdict for each in found.values()] == ["passed", "failed", "not run"]
    assert "assert 1 == 2" in " ".join(found["test_b"].errors) and found["test_c"].found == "no GPU"


@pytest.fixture
def commands(monkeypatch):
    """The commands of a part, which succeed without being run, with their environment variables."""
    found = []

    def note(given, name, command, **more):
        found.append((name, [*command], more))
        return processes.Done(tuple(command), 0, 1.0, Path("/dev/null"))

    monkeypatch.setattr(setting.Setting, "run", note)
    return found


def test_one_gpu_is_compared_with_the_cpu_and_with_two_ranks_that_share_it(no_launcher, commands, monkeypatch):
    """Without TF32 on the GPU, and by the same command in all else."""
    pairs = []
    apart = {"weights": 1e-6, "losses": 1e-3}
    monkeypatch.setattr(equality, "distances", lambda one, other: pairs.append((one.name, other.name)) or apart)
    given = dataclasses.replace(ON_CPU, cpu=False, ranks=(1,), here=1)
    found = {each.name: each for each in equality.checks(given)}
    whats = ("GPU and CPU compute the same", "2 ranks on one GPU compute what one computes")
    assert [*found] == [f"{recipe}: {what}" for recipe in ("dcgan", "wgan_gp") for what in whats]
    assert {each.verdict for each in found.values()} == {"failed"}  # by its losses
    runs = [[f"equal-{recipe}-{ranks}" for ranks in ("cpu", 1, 2)] for recipe in ("dcgan", "wgan_gp")]
    assert pairs == [pair for on_cpu, single, shared in runs for pair in ((on_cpu, single), (single, shared))]
    for (_, on_cpu, hidden), (_, on_gpu, shown), (_, of_two, both) in (commands[:3], commands[3:]):
        assert hidden == {"CUDA_VISIBLE_DEVICES": ""} and shown == both == {"NVIDIA_TF32_OVERRIDE": "0"}
        assert on_cpu[:-1] == on_gpu[:-1] and on_cpu[-1] != on_gpu[-1]
        assert of_two[2:5] == ["hvdgan.launch", "-np", "2"] and of_two[-1] == "--share-gpu"
        assert of_two[of_two.index("--") + 1 : -2] == on_gpu[3:-1]


def test_several_gpus_are_not_shared(no_launcher, commands, monkeypatch):
    monkeypatch.setattr(equality, "distances", lambda one, other: {"weights": 0.0, "losses": 0.0})
    list(equality.checks(dataclasses.replace(ON_CPU, cpu=False)))
    assert len(commands) == 7 and not any("--share-gpu" in words for _, words, _ in commands)


def test_the_distance_of_equal_runs_is_zero_and_that_of_rounded_ones_is_above_the_bound(tmp_path):
    words = ["--recipe", "dcgan", *equality.RECIPES["dcgan"], *"--nf 4 --global-batch-size 16".split()]
    words += f"--max-steps {equality.STEPS} --log-every {equality.STEPS}".split()
    for name, flags in {"one": [], "same": [], "rounded": ["--precision", "mixed_bfloat16"]}.items():
        train(tmp_path, *words, *flags, "--run-dir", name)
    assert equality.distances(tmp_path / "one", tmp_path / "same") == {"weights": 0.0, "losses": 0.0}
    assert min(equality.distances(tmp_path / "one", tmp_path / "rounded").values()) > equality.BOUND


def test_weights_are_compared_by_network_and_not_a_number_is_no_equality(monkeypatch, tmp_path):
    """A bias that is nearly zero may differ by all of itself after another rounding."""
    same = {"ema/a/kernel": np.ones(4), "networks/a/kernel": np.ones((10, 10))}
    biases = {"one": 1e-4, "other": 0.0, "lost": np.nan}
    runs = {tmp_path / name: {**same, "networks/a/bias": np.array([bias])} for name, bias in biases.items()}
    one, other, lost = runs
    for run_dir in runs:
        run_dir.mkdir()
        (run_dir / "metrics.jsonl").write_text('{"a/loss": 1.0, "b/loss": 2.0}\n')
    monkeypatch.setattr(equality, "find", lambda run_dir: run_dir)
    monkeypatch.setattr(equality, "read_tensors", lambda run_dir, only: runs[run_dir].items())
    assert equality.distances(one, other) == {"weights": pytest.approx(1e-5), "losses": 0.0}
    assert np.isnan(equality.distances(one, lost)["weights"])
    del runs[other]["networks/a/bias"]
    assert equality.distances(one, other)["weights"] == float("inf")


def test_each_recipe_trains_in_one_precision_before_the_next(commands, monkeypatch):
    monkeypatch.setattr(recipes, "trained", lambda given, part, name, words: Check(name=name, verdict="passed"))
    given = dataclasses.replace(ON_CPU, recipes=("dcgan", "nosuch", "sngan"), precisions=("float32", "mixed_float16"))
    names = [each.name for each in recipes.checks(given)]
    assert names == ["nosuch", "dcgan-float32", "sngan-float32", "dcgan-mixed_float16", "sngan-mixed_float16"]


def test_images_per_second_are_written_after_each_program_and_repeat(no_launcher, commands, monkeypatch, tmp_path):
    """On a machine that is gone after some minutes the first repeat is worth having."""
    monkeypatch.setattr(peers, "TORCH", tmp_path / "nowhere")
    for name in ("hvdgan_ends", "peer_ends"):
        monkeypatch.setattr(peers.running, name, lambda work: ())
    monkeypatch.setattr(peers.running, "steps_per_second", lambda ends, warm_up: len(commands))
    given = dataclasses.replace(ON_CPU, out=tmp_path, quick=False, ranks=(1,), here=1)
    found = [(each.name, each.found) for each in peers.checks(given) if each.verdict == "passed"]
    compared = "hvdgan against Keras, float32"
    assert found[:3] == [
        ("Keras, float32", "2 images/s"),
        ("hvdgan, float32", "4 images/s"),
        (compared, "2.00 (2.00 to 2.00) times its images/s"),
    ]
    assert found[3] == ("Keras, float32", "4 images/s") and len(found) == 9
    assert found[-1] == (compared, "1.33 (1.20 to 2.00) times its images/s")


def test_losses_that_are_not_finite_and_stages_without_any_are_complaints():
    whole = {"step": 4, "stage": "a", "images_per_sec": 9.0, "d/loss": 1.0, "g/loss": 2.0}
    assert recipes.complaints_of([whole]) == []
    assert recipes.complaints_of([{**whole, "g/loss": None}]) == ["step 4: g/loss is not finite"]
    bare = {"step": 8, "stage": "b", "images_per_sec": 9.0}
    assert recipes.complaints_of([whole, bare]) == ["stage b: every update was skipped"]
    assert recipes.complaints_of([]) == ["the run has logged no metrics"]


def test_the_peak_of_each_stage_is_read_from_the_log():
    line = "2026-11-26 12:00:00 stage {}: peak memory of a {} {} GB, on rank 0\n"
    log = line.format("first", "GPU", "1.5") + line.format("second", "GPU", "1,234") + "done\n"
    assert recipes.peaks_in(log) == {"GPU": {"first": 1.5, "second": 1234.0}}
    assert recipes.peaks_in("stopped: nothing\n") == {}


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("recipe", setting.known_recipes())
def test_every_recipe_takes_its_flags(recipe, small):
    from hvdgan.training.command import parse

    command = parse(["--recipe", recipe, *recipes.flags_of(recipe, 200, small=small)])
    steps = [
        value for name, value in dataclasses.asdict(command.options).items() if re.fullmatch(r"(\w+_)?steps", name)
    ]
    assert sum(steps) in range(200, 209) and all(each % command.config.log_every == 0 for each in steps)


@pytest.mark.parametrize("option", options.OPTIONS)
def test_each_option_changes_one_setting(option):
    from hvdgan.training.command import parse

    plain, given = (parse(["--recipe", "dcgan", *flags]).config for flags in ([], options.OPTIONS[option]))
    names = [field.name for field in dataclasses.fields(plain)]
    changed = [name for name in names if getattr(plain, name) != getattr(given, name)]
    assert changed == ([] if option == "none" else [option.replace("-", "_")])


def test_without_pytorch_the_command_that_installs_it_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(peers, "TORCH", tmp_path / "python")
    assert peers.why_no_torch(cpu=False).endswith("HVDGAN_GPU=1 benchmarks/peers/setup.sh makes it")
    found = list(peers.checks(dataclasses.replace(ON_CPU, out=tmp_path, precisions=("mixed_float16",))))
    assert found == []
    monkeypatch.setattr(peers, "MADE", tmp_path / "made")
    for name, text in (("python", "#!/bin/sh\nexit 1\n"), ("made", "torch")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    assert peers.why_no_torch(cpu=True) == ""
    assert "sees no GPU" in peers.why_no_torch(cpu=False)


def test_programs_on_gpus_wait_only_where_the_time_is_taken():
    on_gpus = dataclasses.replace(ON_CPU, cpu=False, quick=False, ranks=(1, 2, 4), here=4)
    made = {program.name: program for program in peers.programs_of(on_gpus)}
    assert list(made)[3:] == ["MirroredStrategy x 4", "PyTorch DDP x 4", "hvdgan x 4"]
    work = peers.work_of(on_gpus, "float32", 4, Path("out"))
    words = " ".join(made["PyTorch DDP x 4"].command(work))
    assert "--nproc-per-node 4" in words and "--device gpu" in words and "--replicas 4" in words
    assert "--global-batch-size 512" in " ".join(made["hvdgan x 4"].command(work))
    assert [number for number in range(250) if work.waits(number)] == [49, 249]
    assert all(peers.work_of(ON_CPU, "float32", 1, Path("out")).waits(number) for number in range(6))
