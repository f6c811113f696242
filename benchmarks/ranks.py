"""Measures what grows with the number of ranks, with a tiny network on this machine; needs ss (iproute2).

    python benchmarks/ranks.py 2 8 32 --launcher gloo --json ranks.json

Seconds from the launch to the first step by part (until every rank's process runs; has loaded Python, TensorFlow and
Horovod; has met the others, opened the data and built; has traced and done the step), bytes that the TCP connections of
rank 0 and of the median of the others receive at a step, a log, a checkpoint and an evaluation, and peak memory. Runs
tell them apart: one does all but steps rarely, and one for each of the others does it often. MPI goes over TCP here, as
between hosts.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

STEPS = 120
EVERY = {"step": 40, "log": 1, "checkpoint": 5, "evaluation": 20}
"""steps from one log, checkpoint or evaluation to the next in the run that has many; the step's is the last log's"""
TRAIN = "--recipe dcgan --nf 1 --image-size 32 --sample-every 120 --check-ranks-every 0 --report never".split()


def main() -> None:
    """Measure each number of ranks, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ranks", nargs="+", type=int, help="numbers of ranks")
    parser.add_argument("--launcher", choices=("gloo", "mpi"), default="gloo")
    parser.add_argument("--json", type=Path, help="new file for the results")
    args = parser.parse_args()
    found = []
    for ranks in args.ranks:
        found.append({"ranks": ranks, "launcher": args.launcher, **measured(ranks, args.launcher)})
        print(json.dumps(found[-1]), flush=True)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def measured(ranks: int, launcher: str) -> dict[str, object]:
    """The figures of a number of ranks."""
    runs = {kind: run(ranks, launcher, kind) for kind in EVERY}
    found: dict[str, object] = {"start_seconds": runs["log"]["start_seconds"]}  # it logs its first step
    for who in ("root", "others"):
        for what in ("bytes", "messages"):
            rates = {kind: each[who][what] for kind, each in runs.items()}
            # Between two logs lies one log, and of the rest what the run has many of.
            log = (rates["log"] - rates["step"]) / (1 / EVERY["log"] - 1 / EVERY["step"])
            each_time = {"step": rates["step"] - log / EVERY["step"], "log": log}
            each_time |= {kind: (rates[kind] - rates["step"]) * EVERY[kind] for kind in ("checkpoint", "evaluation")}
            found[f"{who}_{what}"] = {kind: round(value) for kind, value in each_time.items()}
        found[f"{who}_peak_mib"] = round(max(each[who]["peak_mib"] for each in runs.values()))
    return found


def run(ranks: int, launcher: str, kind: str) -> dict[str, object]:
    """Train, and return what rank 0 and the median of the others received per step between two logs."""
    every = {each: EVERY[each] if each == kind else STEPS for each in EVERY}
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        words = [*TRAIN, "--global-batch-size", str(2 * ranks), "--steps", str(STEPS), "--run-dir", str(run_dir)]
        words += ["--log-every", str(1 if kind == "log" else EVERY["step"])]
        words += ["--checkpoint-every", str(every["checkpoint"])]
        words += ["--eval-samples", str(8 * ranks), "--eval-every", str(every["evaluation"])]
        command = [sys.executable, "-m", "hvdgan.launch", f"--{launcher}", "-np", str(ranks), "train", *words]
        begin, seen, peaks, start = time.monotonic(), [], {}, {}
        environment = {**os.environ, "OMPI_MCA_btl": "tcp,self", "CUDA_VISIBLE_DEVICES": ""}
        with (Path(folder) / "said").open("w") as said:
            process = psutil.Popen(command, stdout=said, stderr=said, env=environment)
            try:
                while process.poll() is None:
                    steps = logged(run_dir / "metrics.jsonl")
                    if "step" not in start:
                        now = time.monotonic() - begin
                        for part in reached(process, ranks, run_dir, steps):
                            start.setdefault(part, now)
                    if steps and (not seen or steps > seen[-1][0]):
                        numbers = ranks_below(process)
                        seen.append((steps, received(numbers)))
                        peaks |= {rank: max(peaks.get(rank, 0.0), peak) for rank, peak in memory(numbers).items()}
                    time.sleep(0.02 if steps else 0.2)
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.wait(60)
        if process.returncode or len(seen) < 2:
            sys.exit(f"{' '.join(command)}: exit code {process.returncode}\n{(Path(folder) / 'said').read_text()}")
    # The last log is followed by the end of the run, with samples and a checkpoint.
    (begun, before), (ended, after) = seen[0], [each for each in seen if each[0] < STEPS][-1]
    rates = {rank: (after[rank] - before[rank]) / (ended - begun) for rank in before.keys() & after.keys()}
    others = [rank for rank in rates if rank] or [0]
    who = {"root": [0], "others": others}
    return {
        "start_seconds": {
            part: round(until - since, 1)
            for (part, until), since in zip(start.items(), [0.0, *start.values()], strict=False)
        },
        **{
            name: {
                "bytes": statistics.median(rates[rank][0] for rank in group),
                "messages": statistics.median(rates[rank][1] for rank in group),
                "peak_mib": statistics.median(peaks[rank] for rank in group),
            }
            for name, group in who.items()
        },
    }


def logged(metrics: Path) -> int:
    """The last step of a metrics.jsonl; 0 if there is none."""
    lines = text_of(metrics).split("\n")[:-1]
    return json.loads(lines[-1])["step"] if lines else 0


def reached(process: psutil.Process, ranks: int, run_dir: Path, steps: int) -> list[str]:
    """The parts of the start that are behind all ranks, which have logged this step."""
    numbers = ranks_below(process)
    facts = {
        "launch": len(numbers) == ranks,
        "load": len(numbers) == ranks and all(map(has_loaded, numbers.values())),
        "build": '"start"' in text_of(run_dir / "events.jsonl"),
        "step": steps > 0,
    }
    return [part for part, is_behind in facts.items() if is_behind]


def has_loaded(pid: int) -> bool:
    """Whether a process has loaded Horovod; one that has ended has not."""
    try:
        return b"horovod" in Path(f"/proc/{pid}/maps").read_bytes()
    except OSError:
        return False


def text_of(path: Path) -> str:
    """The text of a file; "" if there is none."""
    return path.read_text(encoding="utf-8") if path.exists() else ""


def ranks_below(process: psutil.Process) -> dict[int, int]:
    """The process of each rank, by its number."""
    found = {}
    for each in process.children(recursive=True):
        try:
            names, words = each.environ(), each.cmdline()
        except psutil.Error:
            continue
        number = names.get("HOROVOD_RANK") or names.get("OMPI_COMM_WORLD_RANK")
        if number is not None and words[1:3] == ["-m", "hvdgan.train"]:
            found[int(number)] = each.pid
    return found


def received(pids: dict[int, int]) -> dict[int, np.ndarray]:
    """The bytes, and the segments with any, that the TCP connections of each rank have received so far."""
    lines = subprocess.run(["ss", "-tinpOH"], check=True, capture_output=True, text=True).stdout.splitlines()
    totals = {rank: np.zeros(2) for rank in pids}
    numbers = {pid: rank for rank, pid in pids.items()}
    for line in lines:
        owner = re.search(r"pid=(\d+)", line)
        counts = [re.search(rf"\b{name}:(\d+)", line) for name in ("bytes_received", "data_segs_in")]
        if owner and int(owner[1]) in numbers and all(counts):
            totals[numbers[int(owner[1])]] += [int(each[1]) for each in counts]
    return totals


def memory(pids: dict[int, int]) -> dict[int, float]:
    """The peak resident memory of each rank in MiB."""
    found = {}
    for rank, pid in pids.items():
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        found[rank] = int(re.search(r"VmHWM:\s+(\d+)", text)[1]) / 1024
    return found


if __name__ == "__main__":
    main()
