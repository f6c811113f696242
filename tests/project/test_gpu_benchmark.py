"""benchmarks/gpu.sh on the CPU: all parts run, whatever fails in one; results and page say what was found."""

import json
import re
import signal
import sys

import psutil
import pytest

from launching import ROOT, run

sys.path.insert(0, str(ROOT / "benchmarks"))
sys.path.insert(0, str(ROOT / "benchmarks" / "peers"))
import gpu.__main__ as script
from gpu import build, equality, options, processes, setting
from gpu.check import Check, Goal, Part

SCRIPT = ROOT / "benchmarks" / "gpu.sh"
PARTS = ["build", "equality", "resume", "tests", "peers", "scaling", "recipes", "options"]
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
    for recipe in equality.RECIPES:
        assert verdicts["equality"][f"{recipe}: core and CPU compute the same"] == "passed"
        assert verdicts["equality"][f"{recipe}: 2 ranks compute what one computes"] == "passed"
    assert len(verdicts["resume"]) == 2 and len(verdicts["recipes"]) == 2 and len(verdicts["tests"]) > 8
    assert [*verdicts["options"]] == [f"{option}-float32" for option in options.OPTIONS]
    assert {"Keras, float32", "MirroredStrategy x 2, float32", "hvdgan x 2, float32"} <= verdicts["peers"].keys()
    trained = {each["name"]: each["figures"] for part in found["parts"] for each in part["checks"]}
    rates = trained["completion-float32"]["images_per_sec"]
    assert len(rates) == 3 and all(rate > 0 for rate in rates.values())
    peaks = trained["completion-float32"]["peak_gb"]["process"]
    assert peaks.keys() == rates.keys() and min(peaks.values()) > 0.1
    text = (tmp_path / "out" / "page.md").read_text()
    assert "this ran on the CPU, and says nothing about GPUs" in text and "PROJECTION" in text


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
    text = (tmp_path / "out" / "page.md").read_text()
    assert "1 of 2 checks failed" in text and "Recipes in each precision: nosuch" in text
    assert "there is no such recipe; hvdgan has calo3d" in text
    again = run([SCRIPT, *words], tmp_path)
    assert again.returncode == 2 and "--out out: exists already; name a new folder" in again.stderr


@pytest.fixture
def parts(monkeypatch, tmp_path):
    """A function that runs main() with parts of the test's own, and returns its exit code and its results."""
    monkeypatch.setattr(script.build, "examine", lambda cpu: DOCTOR)

    def make(*words, **works):
        made = tuple(Part(name, f"Title of {name}", work) for name, work in works.items())
        monkeypatch.setattr(script, "PARTS", made)
        code = script.main(["--gpus=0", "--cpu", "--out", str(tmp_path / "out"), *words])
        page_of = tmp_path / "out" / "page.md"
        text = page_of.read_text() if page_of.exists() else ""
        return code, json.loads((tmp_path / "out" / "result.json").read_text()), text

    return make


def fine(given):
    yield Check(name="fine", verdict="passed")


def test_a_part_that_breaks_does_not_stop_the_later_ones(parts, capsys):
    def breaks(given):
        yield Check(name="first", verdict="passed")
        raise OSError("the disk of <this> host")

    code, found, text = parts(breaks=breaks, later=fine)
    assert code == 1 and found["complete"]
    assert [[each["verdict"] for each in part["checks"]] for part in found["parts"]] == [
        ["passed", "failed"],
        ["passed"],
    ]
    assert "1 of 3 checks failed" in text
    assert "## Failed: Title of breaks: breaks itself" in text and "OSError: the disk of <this> host" in text
    assert "breaks: breaks itself: failed (OSError: the disk of <this> host), 0 s\n" in capsys.readouterr().out


def test_a_page_that_cannot_be_made_does_not_stop_the_later_parts(parts, monkeypatch, capsys):
    """As when a GPU's figures have a form that no CPU's had."""
    monkeypatch.setattr(script.page, "make", lambda facts: facts["parts"][0]["nothing"])
    code, found, text = parts(first=fine, second=fine)
    assert code == 1 and found["complete"] and len(found["parts"]) == 2 and not text
    assert "KeyError: 'nothing'" in found["page_error"]
    said = capsys.readouterr().out
    assert "page.md cannot be made: KeyError('nothing'); send result.json alone" in said
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


def test_what_the_time_budget_leaves_out_is_named_and_no_failure(parts, monkeypatch, capsys):
    clock = [0.0]
    monkeypatch.setattr(setting.Setting, "seconds", property(lambda given: clock[-1]))

    def work(given):
        yield Check(name="quick", verdict="passed")
        given.run("work/last", ["true"])
        clock.append(481.0)
        given.run("work/never", ["false"])

    code, found, text = parts("--time-budget", "480", work=work, later=work)
    assert code == 0 and found["complete"]
    assert [[each["name"] for each in part["checks"]] for part in found["parts"]] == [
        ["quick", "from never on"],
        ["quick", "from last on"],
    ]
    assert "All 2 checks passed; 2 did not run" in text
    assert "Title of later: from last on: the time budget was spent; --only later runs it" in text
    assert "work: from never on: not run (the time budget was spent; " in capsys.readouterr().out


def test_a_check_that_is_done_again_replaces_its_earlier_result(parts):
    def repeats(given):
        yield Check(name="one", verdict="failed", found="one repeat")
        yield Check(name="other", verdict="passed")
        yield Check(name="one", verdict="passed", found="two repeats")

    code, found, _ = parts(repeats=repeats)
    assert code == 0
    checks = found["parts"][0]["checks"]
    assert [(each["name"], each["found"]) for each in checks] == [("one", "two repeats"), ("other", "")]


def test_a_goal_that_is_missed_and_a_check_that_was_not_run_fail_nothing(parts):
    def work(given):
        yield Check(name="slow", verdict="passed", goal=Goal(0.5, 0.95))
        yield Check(name="quick", verdict="passed", goal=Goal(0.96, 0.95))
        yield Check(name="absent", verdict="not run", found="make absent makes it")

    code, found, text = parts(work=work)
    assert code == 0
    assert [each["goal"] and each["goal"]["reached"] for each in found["parts"][0]["checks"]] == [False, True, None]
    assert "All 2 checks passed; 1 did not run" in text and "Title of work: absent: make absent makes it" in text
    assert re.findall(r"\| (missed|reached) \|", text) == ["missed", "reached"]


def test_without_a_gpu_it_is_one_line(tmp_path):
    done = run([SCRIPT], tmp_path, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2 and done.stdout == "" and list(tmp_path.iterdir()) == []
    assert done.stderr.startswith("benchmarks/gpu.sh: there is no GPU here") and done.stderr.count("\n") == 1


def test_a_python_that_lacks_what_it_needs_is_one_line(tmp_path):
    """Neither make nor pip is called, and .venv is not used in place of the active environment."""
    bare = tmp_path / "bare" / "bin"
    bare.mkdir(parents=True)
    (bare / "python").write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    (bare / "python").chmod(0o755)
    (tmp_path / "work").mkdir()
    done = run([SCRIPT, "--cpu"], tmp_path / "work", PATH=f"{bare}:/usr/bin:/bin", VIRTUAL_ENV=str(bare.parent))
    assert done.returncode == 2 and done.stdout == "" and list((tmp_path / "work").iterdir()) == []
    assert done.stderr.startswith(f"benchmarks/gpu.sh: {bare}/python: ModuleNotFoundError: No module named ")
    assert done.stderr.endswith("or run HVDGAN_GPU=1 make setup\n") and done.stderr.count("\n") == 1


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
        ("--only test", "--only test: expected some of build, equality,"),
        ("--precision float16", "--precision float16: expected some of float32,"),
        ("--timeout 0", "--timeout 0.0: expected a number of seconds above 0"),
        ("--time-budget -1", "--time-budget -1.0: expected a number of seconds above 0"),
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
    flags = set(re.findall(r"^  (--[a-z-]+)", done.stdout, re.MULTILINE)) - {"--help"}
    named = {flag for action in script.arguments()._actions for flag in action.option_strings} - {"--gpus"}
    assert flags == named


def test_ranks_start_by_the_launcher_and_in_slurm_by_srun(no_launcher, tmp_path):
    one, two = (setting.launcher(count, 2, "hvdgan.train") for count in (1, 2))
    assert one == [sys.executable, "-m", "hvdgan.train"]
    launch = [sys.executable, "-m", "hvdgan.launch"]
    assert two == [*launch, "-np", "2", "-m", "hvdgan.train", "--"]
    (tmp_path / "srun").write_text("#!/bin/sh\n")
    (tmp_path / "srun").chmod(0o755)
    no_launcher.setenv("PATH", str(tmp_path), prepend=":")
    no_launcher.setenv("SLURM_JOB_ID", "7")
    no_launcher.setenv("SLURM_JOB_NUM_NODES", "2")
    no_launcher.setenv("SLURM_JOB_CPUS_PER_NODE", "32(x2)")
    assert setting.hosts_of_allocation() == 2
    by_srun = " ".join(setting.launcher(8, 2, "hvdgan.train"))
    assert by_srun.startswith("srun --mpi=pmix --kill-on-bad-exit=1 --nodes=2 --ntasks=8 --cpus-per-task=8 ")
    no_launcher.setenv("LAUNCHER", "gloo")
    assert setting.launcher(8, 2, "m") == [*launch, "--gloo", "-np", "8", "-m", "m", "--"]


def test_a_command_is_ended_at_its_time_limit_with_its_children(tmp_path):
    words = ["bash", "-c", "echo NCCL WARN no link; sleep 1000 & echo $! >child; wait"]
    done = processes.run(words, tmp_path / "logs" / "a.txt", 1.0, tmp_path, {})
    assert done.code is None and done.errors[0] == "NCCL WARN no link" and "time limit" in done.errors[-1]
    assert not psutil.pid_exists(int((tmp_path / "child").read_text()))


def test_the_lines_that_say_what_failed_are_kept():
    text = "+ python\n" + "step 1\n" * 50 + "hvdgan: rank 1: no space\n" + "step 2\n" * 50
    assert processes.telling_lines(text) == ["hvdgan: rank 1: no space"]
    assert processes.telling_lines("+ python\na\nb\n") == ["a", "b"]
