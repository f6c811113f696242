"""report.html of a run that the trainer writes beside itself: when, of which ends, and what it never does."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

import saved
from hvdgan import report
from hvdgan.checkpoints import checkpoint, contents, files
from hvdgan.training.monitoring import page
from hvdgan.training.monitoring.page import Page
from launching import BIN, EACH_CONTROLLER, environment, launcher, run, train

TINY = [word for word in saved.TINY if word != "--log-every"][:6] + ["--steps", "4"]
reports = pytest.mark.reports


def sentence(run_dir):
    """The verdict of the report."""
    text = (run_dir / "report.html").read_text()
    return re.search(r'<p class="sentence">(.*?)</p>', text)[1]


@reports
def test_a_run_writes_its_report_at_the_end(tmp_path, capfd):
    assert saved.train(tmp_path / "run") == 0
    assert sentence(tmp_path / "run") == "Finished at step 8"
    assert ">verified<" in (tmp_path / "run" / "report.html").read_text()
    assert f"hvdgan: report in {tmp_path / 'run' / 'report.html'}\n" in capfd.readouterr().err
    before = (tmp_path / "run" / "report.html").read_text()
    (tmp_path / "run" / ".report.partial.html").write_text("what a killed process leaves behind")
    assert saved.train(tmp_path / "run", "--max-steps", "8") == 0  # nothing is left to do
    assert (
        sentence(tmp_path / "run") == "Finished at step 8" and (tmp_path / "run" / "report.html").read_text() != before
    )
    assert not (tmp_path / "run" / ".report.partial.html").exists()


@reports
def test_a_report_of_a_failed_run_says_why(tmp_path):
    words = ["--recipe", "tiny:Exploding", "--max-bad-steps", "1", "--checkpoint-every", "1"]
    assert saved.train(tmp_path / "run", *words) == 1
    assert sentence(tmp_path / "run").startswith("Failed after step")
    assert "loss or gradients are not finite" in (tmp_path / "run" / "report.html").read_text()


@reports
def test_a_run_that_never_began_writes_none(tmp_path):
    assert saved.train(tmp_path / "run", "--global-batch-size", "0") == 2
    assert saved.train(tmp_path / "other", "--data", str(tmp_path / "nowhere")) == 2
    assert not [*tmp_path.rglob("report.html")]


@reports
def test_checkpoints_that_take_long_to_read_are_not_verified(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "MOST_VERIFIED", 100)
    assert saved.train(tmp_path / "run") == 0
    assert ">not verified<" in (tmp_path / "run" / "report.html").read_text()


@reports
def test_a_damaged_checkpoint_is_named_at_the_end(tmp_path, monkeypatch):
    write = checkpoint.write

    def write_and_damage(folder, snapshot):
        write(folder, snapshot)
        state = folder / f"step-{snapshot.step:08d}" / files.STATE
        state.write_bytes(state.read_bytes()[:-8] + bytes(8))

    monkeypatch.setattr(checkpoint, "write", write_and_damage)
    assert saved.train(tmp_path / "run") == 0
    assert ">DAMAGED: tensor " in (tmp_path / "run" / "report.html").read_text()


@reports
def test_never_means_never(tmp_path, capfd):
    assert saved.train(tmp_path / "run", "--report", "never") == 0
    assert not (tmp_path / "run" / "report.html").exists() and "report in" not in capfd.readouterr().err


@reports
def test_a_file_of_the_users_own_is_kept_and_named(tmp_path, capfd):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "report.html").write_text("mine")
    assert saved.train(tmp_path / "run", "--report", "checkpoints", "--checkpoint-every", "1") == 0
    assert (tmp_path / "run" / "report.html").read_text() == "mine"
    said = capfd.readouterr().err
    assert "report.html: exists already" in said and "warning: no report was written" in said
    assert saved.steps(tmp_path / "run")[-1] == 8


@pytest.mark.parametrize("controller", EACH_CONTROLLER)
def test_rank_0_of_two_writes_it(tmp_path, controller):
    train(tmp_path, *TINY, "--run-dir", "run", "--report", "end", ranks=2, controller=controller)
    text = (tmp_path / "run" / "report.html").read_text()
    assert "Finished at step 4" in text and "<dt>ranks</dt><dd>2</dd>" in text
    assert "the rank that waits longest" in text


def test_a_stopped_run_reports_that_and_asks_for_a_requeue(tmp_path):
    command = [*launcher(1), sys.executable, "-m", "hvdgan.train", *TINY[2:], "--recipe", "stepping:OneStep"]
    done = run([*command, "--run-dir", "run"], tmp_path)
    assert done.returncode == 75, done.stderr
    assert re.match("Stopped at step [1-3] of 4, and saved", sentence(tmp_path / "run"))


# Flags of a run, its exit code, and what its report says. A launcher ends rank 0 once rank 1 has left with that code.
STOPPED = (["--recipe", "stepping:OneStep"], 75, "Stopped at step [1-3] of 4, and saved")
FAILED = (["--recipe", "tiny:Exploding", "--max-bad-steps", "1"], 1, "Failed after step")


@pytest.mark.parametrize("controller", EACH_CONTROLLER)
@pytest.mark.parametrize("how", [STOPPED, FAILED], ids=["stopped", "failed"])
def test_rank_0_of_two_that_leave_early_writes_it(tmp_path, controller, how):
    words, code, said = how
    command = [*launcher(2, controller), sys.executable, "-m", "hvdgan.train", *TINY[2:], *words]
    done = run([*command, "--run-dir", "run"], tmp_path)
    assert done.returncode and re.search(f"(?i)exit(ed with exit)? code:? *{code}\\b", done.stdout + done.stderr)
    assert re.match(said, sentence(tmp_path / "run")), done.stderr
    assert "report in run/report.html" in done.stderr


def test_another_rank_waits_for_it_within_bounds(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "LITTLE_PATIENCE", 0.3)
    monkeypatch.setattr(page, "LEEWAY", 0.1)
    (tmp_path / "log.txt").touch()
    began = time.monotonic()
    with Page("end") as other:
        other.follow(tmp_path, is_root=False)
    other.wait_for_rank_0()
    assert time.monotonic() - began >= 0.4


@pytest.mark.parametrize("why", ["finished", "never", "left", "not shared"])
def test_another_rank_does_not_wait(tmp_path, monkeypatch, why):
    monkeypatch.setattr(page, "LEEWAY", 600.0)
    if why != "not shared":
        (tmp_path / "log.txt").touch()
    began = time.monotonic()
    with Page("never" if why == "never" else "end") as other:
        other.follow(tmp_path, is_root=False)
        other.is_finished = why == "finished"
        if why == "left":
            other.follow(None)
    other.wait_for_rank_0()
    assert time.monotonic() - began < 60


class Followed:
    """A page of a run, with the processes that it has started."""

    def __init__(self, run_dir, monkeypatch, command, when="checkpoints"):
        self.started = []
        self.command = command
        monkeypatch.setattr(page, "start", self.start)
        self.page = Page(when)
        self.page.follow(run_dir)

    def start(self, run_dir, *, idle, **_):
        self.started.append(("idle" if idle else "last", subprocess.Popen(self.command)))
        return self.started[-1][1]

    @property
    def kinds(self):
        return [kind for kind, _ in self.started]


def test_one_report_at_a_time_is_written_and_a_checkpoint_does_not_wait(tmp_path, monkeypatch):
    followed = Followed(tmp_path, monkeypatch, ["sleep", "600"])
    followed.page.renew()
    followed.page.renew()
    assert followed.kinds == ["idle"]
    followed.started[0][1].kill()
    followed.started[0][1].wait()


def test_pages_are_not_begun_one_right_after_another(tmp_path, monkeypatch):
    """Where checkpoints are written every few seconds, pages would take the core from the training."""
    followed = Followed(tmp_path, monkeypatch, ["true"])
    followed.page.renew()
    followed.started[0][1].wait(60)
    followed.page.renew()
    assert followed.kinds == ["idle"]
    monkeypatch.setattr(page, "PAUSE", 0.0)
    followed.page.renew()
    assert followed.kinds == ["idle", "idle"]


def test_a_report_that_hangs_is_killed_and_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(page, "LITTLE_PATIENCE", 0.2)
    followed = Followed(tmp_path, monkeypatch, ["sleep", "600"])
    with followed.page:
        followed.page.renew()
    assert followed.kinds == ["idle", "last"]
    assert [process.wait(60) for _, process in followed.started] == [-signal.SIGKILL] * 2
    assert f"warning: no report was written; python -m hvdgan.report {tmp_path}" in capsys.readouterr().err


SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_the_wait_and_not_the_process(tmp_path, monkeypatch, capsys, number):
    handler = signal.getsignal(number)
    send = f"kill -{int(number)} {os.getpid()}; exec sleep 600"
    followed = Followed(tmp_path, monkeypatch, ["sh", "-c", send])
    with followed.page:
        pass
    assert followed.started[0][1].wait(60) == -signal.SIGKILL
    assert "warning: no report was written" in capsys.readouterr().err
    assert signal.getsignal(number) == handler


def test_a_run_that_is_finished_stays_so_if_its_user_does_not_wait_for_the_report(tmp_path, monkeypatch, capfd):
    send = f"kill -INT {os.getpid()}; exec sleep 600"
    monkeypatch.setattr(page, "start", lambda *_, **__: subprocess.Popen(["sh", "-c", send], start_new_session=True))
    assert saved.train(tmp_path / "run") == 0
    assert "warning: no report was written" in capfd.readouterr().err


def test_a_page_that_was_written_before_a_signal_is_there(tmp_path, monkeypatch, capsys):
    """As when a launcher ends rank 0 after another rank has seen the page."""
    (tmp_path / "report.html").write_text("older")
    write = f"echo new > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/report.html; kill -TERM {os.getpid()}"
    followed = Followed(tmp_path, monkeypatch, ["sh", "-c", f"{write}; exec sleep 600"])
    with followed.page:
        pass
    assert capsys.readouterr().err == f"hvdgan: report in {tmp_path / 'report.html'}\n"
    assert followed.started[0][1].wait(60) == -signal.SIGKILL


def test_a_page_whose_checkpoints_take_too_long_to_verify_is_there(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(page, "PATIENCE", 3.0)
    (tmp_path / "checkpoints").mkdir()
    followed = Followed(tmp_path, monkeypatch, ["sh", "-c", f"touch {tmp_path / 'report.html'}; exec sleep 600"])
    followed.page.is_finished = True
    with followed.page:
        pass
    assert f"report in {tmp_path / 'report.html'}, which has not verified the checkpoints" in capsys.readouterr().err
    assert followed.started[0][1].wait(60) == -signal.SIGKILL


@reports
def test_the_page_is_written_before_the_checkpoints_are_verified(tmp_path, monkeypatch):
    assert saved.train(tmp_path / "run", "--report", "never") == 0
    verified, found = contents.verified, []

    def look(path):
        found.append(sentence(tmp_path / "run"))
        return verified(path)

    monkeypatch.setattr(contents, "verified", look)
    assert report.main([str(tmp_path / "run"), "--verify"]) == 0
    assert found[0] == "Finished at step 8"
    assert ">verified<" in (tmp_path / "run" / "report.html").read_text()


def test_the_end_does_not_wait_for_the_page_of_a_checkpoint(tmp_path, monkeypatch):
    followed = Followed(tmp_path, monkeypatch, ["sleep", "600"])
    began = time.monotonic()
    with followed.page:
        followed.page.renew()
        followed.command = ["true"]
    assert time.monotonic() - began < page.LITTLE_PATIENCE
    assert [(kind, process.wait(60)) for kind, process in followed.started] == [("idle", -signal.SIGKILL), ("last", 0)]


def test_after_one_that_could_not_be_written_the_end_is_the_next_try(tmp_path, monkeypatch):
    followed = Followed(tmp_path, monkeypatch, ["false"])
    followed.page.renew()
    followed.started[0][1].wait(60)
    followed.page.renew()
    assert followed.kinds == ["idle"]
    followed.command = ["true"]
    with followed.page:
        pass
    assert followed.kinds == ["idle", "last"]


def test_a_program_that_is_missing_stops_nothing(tmp_path, monkeypatch, capsys):
    followed = Followed(tmp_path, monkeypatch, [str(tmp_path / "missing")])
    with followed.page:
        followed.page.renew()
    assert f"warning: {tmp_path / 'report.html'} cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize("when", ["never", "end"])
def test_checkpoints_without_that_flag_write_none(tmp_path, monkeypatch, when):
    followed = Followed(tmp_path, monkeypatch, ["true"], when)
    followed.page.renew()
    assert followed.kinds == []


def test_another_rank_than_0_writes_none(tmp_path, monkeypatch):
    followed = Followed(tmp_path, monkeypatch, ["true"])
    followed.page.follow(None)  # as after a new set of ranks, in which this one is not the first
    with followed.page:
        followed.page.renew()
    assert followed.kinds == []


@reports
def test_the_process_takes_only_what_others_leave_and_is_no_rank(tmp_path, monkeypatch):
    """It runs where a launcher has started this process as one of two, which hvdgan.report alone would refuse."""
    assert saved.train(tmp_path / "run", "--report", "never") == 0
    monkeypatch.setenv("HOROVOD_SIZE", "2")
    monkeypatch.setenv("HOROVOD_RANK", "0")
    process = page.start(tmp_path / "run", idle=True)
    with open(f"/proc/{process.pid}/stat", encoding="utf-8") as file:
        fields = file.read().rpartition(") ")[2].split()
    assert fields[38] == "5"  # SCHED_IDLE; field 41 of proc(5)
    assert process.wait(240) == 0 and (tmp_path / "run" / "report.html").is_file()
    refused = subprocess.run(
        [BIN / "python", "-m", "hvdgan.report", tmp_path / "run"],
        env=environment(HOROVOD_SIZE="2", HOROVOD_RANK="0"),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert refused.returncode == 2 and "has started 2" in refused.stderr
