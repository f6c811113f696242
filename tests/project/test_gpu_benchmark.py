"""benchmarks/gpu.sh on the CPU: all parts run, whatever fails in one; results and page say what was found."""

import dataclasses
import json
import re
import signal
import sys
from pathlib import Path

import psutil
import pytest

from launching import ROOT, run, train

sys.path.insert(0, str(ROOT / "benchmarks"))
sys.path.insert(0, str(ROOT / "benchmarks" / "peers"))
import gpu.__main__ as script
from gpu import build, check, device_tests, equality, options, page, peers, processes, recipes, scaling, setting
from gpu.check import Check, Goal, Part

SCRIPT = ROOT / "benchmarks" / "gpu.sh"
PARTS = ["build", "tests", "equality", "resume", "recipes", "options", "scaling", "peers"]
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
DOCTOR = {
    "rows": [{"check": "Python", "found": "3.11", "verdict": "ok", "hint": ""}],
    "ranks": [{"gpus": 4}],
    "horovod": {"nccl": 22005},
}


@pytest.mark.long
@pytest.mark.timeout(2000)
def test_all_parts_run_on_the_cpu(tmp_path):
    words = "--cpu --quick --recipe dcgan,completion --precision float32 --out out".split()
    done = run([SCRIPT, *words], tmp_path, seconds=1900)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "out" / "result.json").read_text())
    assert found["complete"] and [part["name"] for part in found["parts"]] == PARTS
    verdicts = {part["name"]: {each["name"]: each["verdict"] for each in part["checks"]} for part in found["parts"]}
    assert all("passed" in each.values() and "failed" not in each.values() for each in verdicts.values()), verdicts
    assert verdicts["equality"]["2 ranks compute what one computes"] == "passed"
    assert len(verdicts["resume"]) == 2 and len(verdicts["recipes"]) == 2 and len(verdicts["tests"]) > 8
    assert [*verdicts["options"]] == [f"{option}-float32" for option in options.OPTIONS]
    assert {"Keras, float32", "MirroredStrategy x 2, float32", "hvdgan x 2, float32"} <= verdicts["peers"].keys()
    trained = {each["name"]: each["figures"] for part in found["parts"] for each in part["checks"]}
    rates = trained["completion-float32"]["images_per_sec"]
    assert len(rates) == 3 and all(rate > 0 for rate in rates.values())
    peaks = trained["completion-float32"]["peak_gb"]["process"]
    assert peaks.keys() == rates.keys() and min(peaks.values()) > 0.1
    text = (tmp_path / "out" / "page.html").read_text()
    assert "this ran on the CPU, and says nothing about GPUs" in text and "Efficiency" in text
    assert not re.search(r"""(?:src|href)=["']?(?:https?:|//)""", text)


@pytest.mark.long
def test_a_recipe_that_fails_is_named_and_the_next_one_trains(tmp_path):
    words = "--cpu --quick --only recipes --recipe nosuch,dcgan --precision float32 --out out".split()
    done = run([SCRIPT, *words], tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    (part,) = json.loads((tmp_path / "out" / "result.json").read_text())["parts"]
    assert [(each["name"], each["verdict"]) for each in part["checks"]] == [
        ("nosuch", "failed"),
        ("dcgan-float32", "passed"),
    ]
    text = (tmp_path / "out" / "page.html").read_text()
    assert "1 of 2 checks failed" in text and "Recipes in each precision: nosuch" in text
    assert "there is no such recipe; hvdgan has calo3d" in text
    again = run([SCRIPT, *words], tmp_path)
    assert again.returncode == 2 and "--out out: exists already; name a new folder" in again.stderr


@pytest.fixture
def parts(monkeypatch, tmp_path):
    """A function that runs main() with parts of the test's own, and returns its exit code and its results."""
    monkeypatch.setattr(script.build, "examine", lambda cpu: DOCTOR)

    def make(**works):
        made = tuple(Part(name, f"Title of {name}", work) for name, work in works.items())
        monkeypatch.setattr(script, "PARTS", made)
        code = script.main(["--gpus=0", "--cpu", "--out", str(tmp_path / "out")])
        page_of = tmp_path / "out" / "page.html"
        text = page_of.read_text() if page_of.exists() else ""
        return code, json.loads((tmp_path / "out" / "result.json").read_text()), text

    return make


def fine(given):
    yield Check(name="fine", verdict="passed")


def test_a_part_that_breaks_does_not_stop_the_later_ones(parts):
    def breaks(given):
        yield Check(name="first", verdict="passed")
        raise OSError("the disk of <this> host")

    code, found, text = parts(breaks=breaks, later=fine)
    assert code == 1 and found["complete"]
    assert [[each["verdict"] for each in part["checks"]] for part in found["parts"]] == [
        ["passed", "failed"],
        ["passed"],
    ]
    assert "Title of breaks: breaks itself: OSError: the disk of &lt;this&gt; host" in text


def test_a_page_that_cannot_be_made_does_not_stop_the_later_parts(parts, monkeypatch, capsys):
    """As when a GPU's figures have a form that no CPU's had."""
    monkeypatch.setattr(script.page, "make", lambda facts: facts["parts"][0]["nothing"])
    code, found, text = parts(first=fine, second=fine)
    assert code == 1 and found["complete"] and len(found["parts"]) == 2 and not text
    assert "KeyError: 'nothing'" in found["page_error"]
    said = capsys.readouterr().out
    assert "page.html cannot be made: KeyError('nothing'); send result.json alone" in said
    assert said.rstrip().endswith("result.json")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_was_done_is_there_after_an_interruption(parts, tmp_path, number):
    """A part may take hours, so the checks that it has done are kept; the end of a Slurm job is a SIGTERM."""
    before = signal.getsignal(number)

    def interrupted(given):
        yield Check(name="done", verdict="passed")
        kept = json.loads((tmp_path / "out" / "result.json").read_text())["parts"][1]["checks"]
        assert [each["name"] for each in kept] == ["done"] and signal.getsignal(number) is not signal.SIG_DFL
        signal.raise_signal(number)
        yield Check(name="never", verdict="passed")

    code, found, text = parts(first=fine, second=interrupted, third=fine)
    assert code == 130 and not found["complete"] and signal.getsignal(number) == before
    assert [[each["name"] for each in part["checks"]] for part in found["parts"]] == [["fine"], ["done"]]
    assert "All 2 checks passed; this ran on the CPU, and says nothing about GPUs; the rest has not run" in text


def test_a_goal_that_is_missed_and_a_check_that_was_not_run_fail_nothing(parts):
    def work(given):
        yield Check(name="slow", verdict="passed", goal=Goal(0.5, 0.95))
        yield Check(name="quick", verdict="passed", goal=Goal(0.96, 0.95))
        yield Check(name="absent", verdict="not run", found="make absent makes it")

    code, found, text = parts(work=work)
    assert code == 0
    assert [each["goal"] and each["goal"]["reached"] for each in found["parts"][0]["checks"]] == [False, True, None]
    assert "All 2 checks passed; 1 did not run" in text and "Title of work: absent: make absent makes it" in text
    assert re.findall("<td[^>]*>(missed|reached)</td>", text) == ["missed", "reached"]


def test_without_a_gpu_it_is_one_line(tmp_path):
    done = run([SCRIPT], tmp_path, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2 and done.stdout == "" and list(tmp_path.iterdir()) == []
    assert done.stderr.startswith("benchmarks/gpu.sh: there is no GPU here") and done.stderr.count("\n") == 1


def test_a_build_that_sees_no_gpu_is_one_line_that_says_what_to_run(tmp_path):
    """The launcher's environment names a GPU that TensorFlow cannot see."""
    done = run([SCRIPT], tmp_path, CUDA_VISIBLE_DEVICES="99")
    assert done.returncode == 2 and list(tmp_path.iterdir()) == [] and done.stderr.count("\n") == 1
    assert "TensorFlow registers no GPU" in done.stderr and done.stderr.endswith("; run HVDGAN_GPU=1 make setup\n")


@pytest.mark.parametrize(
    ("changed", "ranks", "complaint"),
    [
        ({}, 4, ""),
        ({"horovod": {"nccl": 0}}, 4, "without NCCL"),
        ({"horovod": {"nccl": 0}}, 1, ""),
        ({"horovod": None}, 2, "Horovod is not installed"),
        ({"ranks": []}, 1, "sees no GPU"),
        ({"rows": [{"check": "Keras", "found": "2.1", "verdict": "fail", "hint": ""}]}, 1, "Keras: 2.1"),
        ({"rows": [{"check": "MPI", "found": "5.0", "verdict": "fail", "hint": ""}]}, 2, ""),
    ],
)
def test_a_wrong_build_is_named(changed, ranks, complaint):
    found = build.problem({**DOCTOR, **changed}, ranks, cpu=False)
    assert complaint in found and bool(found) == bool(complaint)
    assert build.uses_gloo({**DOCTOR, **changed}) == ("5.0" in str(changed))


def test_no_answer_of_the_doctor_is_named():
    assert build.problem({}, 1, cpu=True) == "hvdgan.doctor gives no answer; run make setup"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--bogus", "unrecognized arguments: --bogus"),
        ("--only test", "--only test: expected some of build, tests,"),
        ("--precision float16", "--precision float16: expected some of float32,"),
        ("--timeout 0", "--timeout 0.0: expected a number of seconds above 0"),
    ],
)
def test_a_mistake_is_one_line(words, complaint, capsys):
    with pytest.raises(SystemExit) as left:
        script.main(["--gpus=1", *words.split()])
    said = capsys.readouterr().err
    assert left.value.code == 2 and said.count("\n") == 1 and complaint in said


def test_the_help_is_the_comment_of_the_script(tmp_path):
    done = run([SCRIPT, "--cpu", "--help"], tmp_path)
    assert done.returncode == 0 and done.stdout.startswith("usage: benchmarks/gpu.sh [--out DIR]")
    flags = set(re.findall(r"^  (--[a-z]+)", done.stdout, re.MULTILINE)) - {"--help"}
    named = {flag for action in script.arguments()._actions for flag in action.option_strings} - {"--gpus"}
    assert flags == named


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


def test_ranks_start_by_the_launch_scripts_and_in_slurm_by_srun(no_launcher, tmp_path):
    one, two = (setting.launcher(count, 2, "hvdgan.train") for count in (1, 2))
    assert one == [sys.executable, "-m", "hvdgan.train"]
    assert two == [str(ROOT / "launch" / "single_node.sh"), "-np", "2", "-m", "hvdgan.train", "--"]
    (tmp_path / "srun").write_text("#!/bin/sh\n")
    (tmp_path / "srun").chmod(0o755)
    no_launcher.setenv("PATH", str(tmp_path), prepend=":")
    no_launcher.setenv("SLURM_JOB_ID", "7")
    no_launcher.setenv("SLURM_JOB_NUM_NODES", "2")
    no_launcher.setenv("SLURM_JOB_CPUS_PER_NODE", "32(x2)")
    assert setting.hosts_of_allocation() == 2
    by_srun = " ".join(setting.launcher(8, 2, "hvdgan.train"))
    assert by_srun.startswith("srun --mpi=pmix --kill-on-bad-exit=1 --nodes=2 --ntasks=8 --cpus-per-task=8 ")
    no_launcher.setenv("LAUNCHER", "horovodrun")
    assert setting.launcher(8, 2, "m") == [str(ROOT / "launch" / "multi_node.sh"), "-np", "8", "-m", "m", "--"]


def test_a_command_is_ended_at_its_time_limit_with_its_children(tmp_path):
    words = ["bash", "-c", "echo NCCL WARN no link; sleep 1000 & echo $! >child; wait"]
    done = processes.run(words, tmp_path / "logs" / "a.txt", 1.0, tmp_path, {})
    assert done.code is None and done.errors[0] == "NCCL WARN no link" and "time limit" in done.errors[-1]
    assert not psutil.pid_exists(int((tmp_path / "child").read_text()))


def test_the_lines_that_say_what_failed_are_kept():
    text = "+ python\n" + "step 1\n" * 50 + "hvdgan: rank 1: no space\n" + "step 2\n" * 50
    assert processes.telling_lines(text) == ["hvdgan: rank 1: no space"]
    assert processes.telling_lines("+ python\na\nb\n") == ["a", "b"]


def test_the_report_of_pytest_becomes_checks(tmp_path):
    code = "import pytest\ndef test_a(): pass\ndef test_b(): assert 1 == 2\n"
    code += "@pytest.mark.skip('no GPU')\ndef test_c(): pass\n"
    (tmp_path / "test_some.py").write_text(code)
    run([sys.executable, "-m", "pytest", "-q", "--junitxml=a.xml", "test_some.py"], tmp_path)
    found = {each.name: each for each in device_tests.read(tmp_path / "a.xml")}
    assert [each.verdict for each in found.values()] == ["passed", "failed", "not run"]
    assert "assert 1 == 2" in " ".join(found["test_b"].errors) and found["test_c"].found == "no GPU"


def test_the_distance_of_equal_runs_is_zero_and_that_of_others_is_above_the_bound(tmp_path):
    words = "--recipe tiny:Tiny --image-size 8 --global-batch-size 4 --steps 2 --log-every 2".split()
    for name, seed in (("one", "0"), ("same", "0"), ("other", "1")):
        train(tmp_path, *words, "--seed", seed, "--run-dir", name)
    assert equality.distances(tmp_path / "one", tmp_path / "same") == {"weights": 0.0, "losses": 0.0}
    assert min(equality.distances(tmp_path / "one", tmp_path / "other").values()) > equality.BOUND


def test_losses_that_are_not_finite_and_stages_without_any_are_complaints():
    whole = {"step": 4, "stage": "a", "images_per_sec": 9.0, "d/loss": 1.0, "g/loss": 2.0}
    assert recipes.complaints_of([whole]) == []
    assert recipes.complaints_of([{**whole, "g/loss": None}]) == ["step 4: g/loss is not finite"]
    bare = {"step": 8, "stage": "b", "images_per_sec": 9.0}
    assert recipes.complaints_of([whole, bare]) == ["stage b: every update was skipped"]
    assert recipes.complaints_of([]) == ["the run has logged no metrics"]


def test_the_peak_of_each_stage_is_read_from_the_log():
    line = "2026-11-26 12:00:00 stage {}: peak memory of a {} {} GB, on rank 0; estimated for the steps 5 MB\n"
    log = line.format("first", "GPU", "1.5") + line.format("second", "GPU", "1,234") + "done\n"
    assert recipes.peaks_in(log) == {"GPU": {"first": 1.5, "second": 1234.0}}
    assert recipes.peaks_in("stopped: nothing\n") == {}


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("recipe", setting.known_recipes())
def test_every_recipe_takes_its_flags(recipe, small):
    from hvdgan.training.building.command import parse

    command = parse(["--recipe", recipe, *recipes.flags_of(recipe, 200, small=small)])
    steps = [
        value for name, value in dataclasses.asdict(command.options).items() if re.fullmatch(r"(\w+_)?steps", name)
    ]
    assert sum(steps) in range(200, 209) and all(each % command.config.log_every == 0 for each in steps)


@pytest.mark.parametrize("option", options.OPTIONS)
def test_each_option_changes_one_setting(option):
    from hvdgan.training.building.command import parse

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


def test_the_line_of_a_check_says_why(capsys):
    part = Part("resume", "Title", fine)
    failed = Check(name="a", verdict="failed", errors=("first", "the reason"), seconds=2.4)
    assert check.line_of(part, failed) == "resume: a: failed (the reason), 2 s"


def test_the_sentence_counts(monkeypatch):
    checks = [{"verdict": verdict} for verdict in ("passed", "failed", "not run")]
    facts = {"parts": [{"checks": checks}], "settings": {"cpu": False}, "complete": True}
    assert page.sentence(facts) == "1 of 2 checks failed; 1 did not run"
