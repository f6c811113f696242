"""A soak: runs of three stages that save and evaluate, for an hour, while ranks die, freeze and the disk is full.

make test-soak. Parameters, as environment variables: HVDGAN_SOAK_RANKS (8), HVDGAN_SOAK_SECONDS (3600),
HVDGAN_SOAK_STEPS of a stage (1000) and HVDGAN_SOAK_SEED (0), which decides what happens and when.
"""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

import psutil
import pytest

from launching import environment
from saved import state

RANKS, SECONDS, STEPS, SEED = (
    int(os.environ.get(f"HVDGAN_SOAK_{name}", default))
    for name, default in {"RANKS": 8, "SECONDS": 3600, "STEPS": 1000, "SEED": 0}.items()
)
PEER_SECONDS = 10
TRAIN = [
    *[sys.executable, "-m", "hvdgan.launch", "--gloo", "-np", RANKS, "train", "--recipe", "tiny:Evaluated"],
    *f"--norm batch --image-size 8 --global-batch-size {8 * RANKS} --steps {STEPS} --deterministic".split(),
    *"--checkpoint-every 100 --keep 2 --eval-every 250 --holdout 0.05 --sample-every 300 --log-every 20".split(),
    *f"--peer-timeout {PEER_SECONDS} --stall-timeout 60 --report never".split(),
]
# A launch ends in this time after what ends it; the machine may be busy.
BOUND = 120 + 10 * RANKS
NAMED = r"hvdgan: rank \d+: rank \d+ \(host [^)]*\) has "
# What may happen to a launch, and the exit codes and the words with which it may end then; none: it continues.
ENDS = {
    "kill": ({1, 137}, f"{NAMED}(ended|failed)|hvdgan: rank .*lost"),
    "freeze": ({1, 137}, f"{NAMED}been silent for {PEER_SECONDS} s"),
    "stop": ({75}, "stopped (after step .* and saved|before the first step)"),
    "pause of one": None,
    "pause of all": None,
    "full disk": None,
}
FULL = "No space left on device"


class Launch:
    """Ranks that train into a folder; a thread counts threads, descriptors and memory (MiB) each second of steps."""

    def __init__(self, run_dir: Path) -> None:
        self._said = run_dir.parent.with_name(f"{run_dir.name}.txt")  # beside the disk, which is full at times
        with self._said.open("w") as output:
            words = [*map(str, TRAIN), "--run-dir", str(run_dir)]
            self.process = subprocess.Popen(
                words, stdout=output, stderr=output, env=environment(), start_new_session=True, cwd=run_dir.parent
            )
        self._counts: dict[psutil.Process, list[tuple[int, int, float]]] = defaultdict(list)
        self._counter = threading.Thread(target=self._count, daemon=True)
        self._counter.start()

    def ranks(self) -> list[psutil.Process]:
        """The ranks that there are now, in any order."""
        found = []
        with contextlib.suppress(psutil.Error):
            for each in psutil.Process(self.process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    found += [each] * (each.cmdline()[1:3] == ["-m", "hvdgan.train"])
        return found

    def said(self) -> str:
        return self._said.read_text(errors="replace")

    def wait(self, seconds: float) -> bool:
        """Wait for its end; False: it continues."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        return self.process.returncode is not None

    def check_end(self) -> None:
        """No rank is left, and none has taken more and more of anything."""
        self._counter.join()
        _, alive = psutil.wait_procs([*self._counts], timeout=30)
        assert not alive, (alive, self.said())
        for rank, counts in self._counts.items():
            half = len(counts[20:]) // 2  # the first 20 s evaluate, sample and save for the first time
            if half >= 20:
                most = [(max(each[20 : 20 + half]), max(each[20 + half :])) for each in zip(*counts, strict=True)]
                threads, files, memory = (later - earlier for earlier, later in most)
                print(f"pid {rank.pid}: {len(counts)} s, threads, files, MiB (first half, second half): {most}")
                assert threads <= 2 and files <= 4 and memory <= 0.02 * most[2][0], (most, self.said())

    def _count(self) -> None:
        has_begun = False
        while not self.wait(1):
            has_begun = has_begun or "\nstep " in self.said()
            for each in self.ranks() if has_begun else ():
                with contextlib.suppress(psutil.Error):
                    counts = each.num_threads(), each.num_fds(), each.memory_info().rss / 2**20
                    self._counts[each].append(counts)


@contextlib.contextmanager
def full(disk: Path):
    """Fill a disk for a while."""
    with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(2**16))
    yield
    (disk / "filler").unlink()


def strike(what: str, launch: Launch, disk: Path, draws: random.Random) -> None:
    """Do something to a launch."""
    ranks = sorted(launch.ranks(), key=lambda each: each.pid)
    one = draws.choice(ranks)
    if what == "stop":
        launch.process.send_signal(signal.SIGUSR2)
    elif what == "full disk":
        with full(disk):
            launch.wait(draws.uniform(3, 15))
    else:
        struck = ranks if what == "pause of all" else [one]
        seconds = {"pause of one": PEER_SECONDS / 3, "pause of all": 1.5 * PEER_SECONDS}.get(what)
        with contextlib.suppress(psutil.Error):
            for each in struck:
                each.send_signal(signal.SIGKILL if what == "kill" else signal.SIGSTOP)
            if seconds is not None:
                time.sleep(seconds)
                for each in struck:
                    each.send_signal(signal.SIGCONT)


def trained(run_dir: Path, draws: random.Random | None, happened: Counter) -> dict[str, str]:
    """Train to the end, launch after launch, and return the digests of the last checkpoint's tensors."""
    has_been_full = False
    while True:
        launch, what, was_full = Launch(run_dir), "", False
        log = run_dir / "metrics.jsonl"
        before = log.stat().st_size if log.exists() else 0
        steps = lambda: log.exists() and log.stat().st_size > before  # noqa: B023, E731
        while draws and ENDS.get(what) is None and not launch.wait(draws.uniform(0, 25)):
            what = draws.choice([*ENDS])
            # Nothing watches over ranks before they have found each other.
            while not (len(launch.ranks()) == RANKS and steps()) and not launch.wait(0.1):
                pass
            if launch.wait(0):
                break
            print(f"{time.strftime('%H:%M:%S')} {run_dir.name}: {what}", flush=True)
            happened[what] += 1
            was_full = was_full or what == "full disk"
            strike(what, launch, run_dir.parent, draws)
        if not launch.wait(BOUND if draws else 60 * BOUND):
            # Nothing watches over a rank after the last step; it was about to end, and its launcher waits for it.
            assert what == "freeze" and "\ndone: " in launch.said(), (what, launch.said())
            for rank in launch.ranks():
                rank.send_signal(signal.SIGCONT)
            assert launch.wait(BOUND), launch.said()
        code, said = launch.process.returncode, launch.said()
        launch.check_end()
        has_been_full = has_been_full or was_full
        assert "Traceback" not in said, said
        if code == 0:
            assert len(re.findall(f"{NAMED}", said)) == 0, said
            records = [json.loads(line) for line in log.read_text().splitlines()]
            found = [each["step"] for each in records if "images_per_sec" in each]
            missing = {*range(20, 3 * STEPS + 1, 20)} - {*found}
            assert len({*found}) == len(found), found
            assert not missing or has_been_full, missing  # what a full disk has no room for is lost with a warning
            return state(run_dir, 3 * STEPS)
        codes, words = ENDS.get(what) or (set(), "$^")
        is_explained = code in codes and re.search(words, said)
        assert is_explained or (was_full and code == 1 and FULL in said), (what, code, said)


@pytest.fixture
def disk(tmp_path):
    """A small disk of its own, which only root can make."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.soak
@pytest.mark.timeout(2 * SECONDS + 3600)
def test_soak(disk):
    draws, happened, runs = random.Random(SEED), Counter(), 0
    expected = trained(disk / "whole", None, happened)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        runs += 1
        assert trained(disk / f"run-{runs}", draws, happened) == expected
        shutil.rmtree(disk / f"run-{runs}")
    print(f"{runs} runs with the bits of the undisturbed one; {dict(happened)}")
