"""Measures what grows with the number of ranks, with a tiny network on this machine; needs ss (iproute2).

    python benchmarks/ranks.py 2 8 32 --launcher gloo --json ranks.json

Seconds from the launch to the first log, bytes that the TCP connections of rank 0 and of the median of the others
receive at a step, a log and a checkpoint, and peak memory. Three runs tell them apart: one logs and saves rarely, one
logs often, one saves often. MPI goes over TCP here, as between hosts.
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

import psutil

STEPS = 400
EVERY = {"step": (100, 400), "log": (1, 400), "checkpoint": (100, 5)}
"""steps from one log to the next, and from one checkpoint"""
TRAIN = "--recipe dcgan --nf 1 --image-size 32 --sample-every 400 --check-ranks-every 0 --report never".split()


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
    runs = {kind: run(ranks, launcher, *every) for kind, every in EVERY.items()}
    found: dict[str, object] = {"first_log_seconds": round(min(each["first_log_seconds"] for each in runs.values()), 1)}
    for who in ("root", "others"):
        rates = {kind: each[who]["bytes"] for kind, each in runs.items()}
        (log_every, checkpoint_every), (rarely, _) = EVERY["log"][:1] + EVERY["checkpoint"][1:], EVERY["step"]
        log = (rates["log"] - rates["step"]) / (1 / log_every - 1 / rarely)
        checkpoint = (rates["checkpoint"] - rates["step"]) * checkpoint_every  # no other falls between two logs
        found[f"{who}_bytes"] = {
            "step": round(rates["step"] - log / rarely),
            "log": round(log),
            "checkpoint": round(checkpoint),
        }
        found[f"{who}_peak_mib"] = round(max(each[who]["peak_mib"] for each in runs.values()))
    return found


def run(ranks: int, launcher: str, log_every: int, checkpoint_every: int) -> dict[str, object]:
    """Train, and return what rank 0 and the median of the others received per step between two logs."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        words = [*TRAIN, "--global-batch-size", str(2 * ranks), "--steps", str(STEPS), "--run-dir", str(run_dir)]
        words += ["--log-every", str(log_every), "--checkpoint-every", str(checkpoint_every)]
        command = [sys.executable, "-m", "hvdgan.launch", f"--{launcher}", "-np", str(ranks), "train", *words]
        begin, seen, peaks, first = time.monotonic(), [], {}, None
        environment = {**os.environ, "OMPI_MCA_btl": "tcp,self", "CUDA_VISIBLE_DEVICES": ""}
        with (Path(folder) / "said").open("w") as said:
            process = psutil.Popen(command, stdout=said, stderr=said, env=environment)
            while process.poll() is None:
                steps = logged(run_dir / "metrics.jsonl")
                if steps and first is None:
                    first = time.monotonic() - begin
                if steps and (not seen or steps > seen[-1][0]):
                    numbers = ranks_below(process)
                    seen.append((steps, received(numbers)))
                    peaks |= {rank: max(peaks.get(rank, 0.0), peak) for rank, peak in memory(numbers).items()}
                time.sleep(0.02)
        if process.returncode or len(seen) < 2:
            sys.exit(f"{' '.join(command)}: exit code {process.returncode}\n{(Path(folder) / 'said').read_text()}")
    # The last log is followed by the end of the run, with samples and a checkpoint.
    (begun, before), (ended, after) = seen[0], [each for each in seen if each[0] < STEPS][-1]
    rates = {rank: (after[rank] - before[rank]) / (ended - begun) for rank in before.keys() & after.keys()}
    others = [rank for rank in rates if rank]
    return {
        "first_log_seconds": first,
        "root": {"bytes": rates[0], "peak_mib": peaks[0]},
        "others": {
            "bytes": statistics.median(rates[rank] for rank in others),
            "peak_mib": statistics.median(peaks[rank] for rank in others),
        },
    }


def logged(metrics: Path) -> int:
    """The last step of a metrics.jsonl; 0 if there is none."""
    lines = metrics.read_text(encoding="utf-8").split("\n")[:-1] if metrics.exists() else []
    return json.loads(lines[-1])["step"] if lines else 0


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


def received(pids: dict[int, int]) -> dict[int, int]:
    """The bytes that the TCP connections of each rank have received so far."""
    lines = subprocess.run(["ss", "-tinpOH"], check=True, capture_output=True, text=True).stdout.splitlines()
    totals = dict.fromkeys(pids, 0)
    numbers = {pid: rank for rank, pid in pids.items()}
    for line in lines:
        owner, count = re.search(r"pid=(\d+)", line), re.search(r"bytes_received:(\d+)", line)
        if owner and count and int(owner[1]) in numbers:
            totals[numbers[int(owner[1])]] += int(count[1])
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
