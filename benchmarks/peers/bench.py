"""Compares hvdgan with other programs on the same networks: each runs in turn, several times.

make bench                                     about 20 minutes on two quiet cores; bench-TIME.json holds it
make bench ARGS="--only 'hvdgan*,ddp' --repeats 3 --json three.json"
python benchmarks/peers/bench.py --device gpu --batch-size 16,64,128
python benchmarks/peers/bench.py --device gpu --batch-size 64 --network stylegan2

A run is the rate from the end of the warm-up to the last step, the time from the command to the end of the first step,
and the largest peak memory of a rank (on a GPU the GPU's, with the share of the time in which it computed).
"""

import argparse
import contextlib
import fnmatch
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import processes
from work import ADAM, LATENT_SIZE, StyleGAN2, Work

from hvdgan.diagnostics.installation import cpu_name
from hvdgan.launching.programs import output_of
from hvdgan.launching.starters import built_with

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TORCH = ROOT / ".venv-peers" / "bin" / "python"
MADE = ROOT / ".venv-peers" / ".hvdgan"
"""file that is empty if setup.sh was interrupted"""
ONE = {
    "cpu": ["keras", "torch", "hvdgan"],
    "gpu": ["keras", "keras-jit", "torch", "torch-compile", "hvdgan"],
}
"""programs of one process, by the device for which they run unless --only names others"""
SEVERAL = {
    "cpu": ["horovod-mpi", "horovod-gloo", "multiworker", "mirrored", "ddp", "hvdgan-mpi", "hvdgan-gloo"],
    "gpu": ["horovod-gloo", "mirrored", "ddp", "hvdgan-gloo"],
}
PROGRAMS = [*ONE["gpu"], *SEVERAL["cpu"]]
DEFAULTS = {
    "dcgan": {"nf": 64, "warm_up": 5, "steps": 15},
    "stylegan2": {"nf": 32, "warm_up": StyleGAN2.R1_EVERY, "steps": 4 * StyleGAN2.R1_EVERY},
}
CYCLE = {"dcgan": 1, "stylegan2": StyleGAN2.R1_EVERY}
"""steps after which the updates of a step repeat, of which warm-up and measured steps are multiples"""
OPTIONS = {
    "dcgan": {"latent-size": LATENT_SIZE, "learning-rate": ADAM["learning_rate"], "beta-1": ADAM["beta_1"]},
    "stylegan2": {},
}
"""flags of the recipe, where its defaults are not those of the other programs"""
LOSSES = {
    "dcgan": {"generator/loss", "discriminator/loss"},
    "stylegan2": {"judge/loss", "r1/loss", "fool/loss"},
}
FIGURES = {"images_per_sec": 1, "start_seconds": 1, "peak_mb": 0, "gpu_busy": 2}
"""figures of a run, with the decimals of the table"""
Run = dict[str, Any]


class Failed(Exception):
    """A program failed; the message says why."""


def main() -> int:
    """Run, print, write; 0 if every program ran, 1 if one failed, 2 for a mistake on the command line."""
    given = arguments()
    clean_environment()
    folder = Path(tempfile.mkdtemp(prefix="hvdgan-peers-")) if given.runs is None else given.runs.absolute()
    runs: list[Run] = []
    failures: dict[str, str] = {}
    kinds = [(precision, size) for precision in given.precision for size in given.batch_size]
    for repeat in range(given.repeats):
        for precision, batch_size in kinds:
            for program in given.programs:
                what = f"{program}, {precision}, {batch_size} images"
                out = folder / f"{repeat}-{precision}-{batch_size}-{program}"
                kind = {"batch_size": batch_size, "precision": precision, "ranks": ranks_of(program, given.ranks)}
                sizes = {
                    name: getattr(given, name) for name in ("warm_up", "steps", "device", "image_size", "nf", "network")
                }
                print(f"{repeat + 1} of {given.repeats}: {what}", end=": ", flush=True)
                try:
                    found = measure(program, Work(out=str(out), **kind, **sizes), given.timeout)
                    runs.append({"program": program, **kind, "repeat": repeat, **found})
                    print(", ".join(f"{name} {found[name]:.4g}" for name in FIGURES if name in found), flush=True)
                except Failed as failure:
                    failures[what] = str(failure)
                    print(f"failed: {failure}", flush=True)
                facts = {"machine": machine(), "repeats": given.repeats, **sizes, "runs": runs, "failures": failures}
                given.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        # After each round, because a time limit may end this program.
        print(f"\n{given.steps} steps after {given.warm_up}, {machine()}\n\n{table(runs)}\n", flush=True)
    print(f"figures: {given.json}\nlogs: {folder}")
    return 1 if failures else 0


def arguments() -> argparse.Namespace:
    """Parse the command line, choose the programs, and print those that are left out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = ", ".join(PROGRAMS)
    parser.add_argument("--only", type=words, help=f"patterns of programs, comma-separated, among {known}")
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu", help="cpu: one core a rank (default)")
    parser.add_argument("--ranks", type=positive, default=2, help="ranks of the programs that have some (default: 2)")
    parser.add_argument("--repeats", type=positive, default=2, help="rounds through all programs (default: 2)")
    parser.add_argument("--precision", type=words, default=["float32", "mixed_bfloat16"], help="comma-separated")
    sizes = {"type": lambda text: [positive(word) for word in words(text)], "default": [16]}
    parser.add_argument("--batch-size", **sizes, help="images of a rank, comma-separated (default: 16)")
    parser.add_argument(
        "--network", choices=[*DEFAULTS], default="dcgan", help="stylegan2: for programs of one process"
    )
    of_networks = {"nf": "width", "warm-up": "first steps, not measured", "steps": "measured steps"}
    for name, what in of_networks.items():
        known_defaults = ", ".join(
            f"{each[name.replace('-', '_')]} for {network}" for network, each in DEFAULTS.items()
        )
        parser.add_argument(f"--{name}", type=positive, help=f"{what} (default: {known_defaults})")
    numbers = {"image-size": (64, "pixels"), "timeout": (300, "limit of a run (seconds)")}
    for name, (default, what) in numbers.items():
        parser.add_argument(f"--{name}", type=positive, default=default, help=f"{what} (default: {default})")
    when = time.strftime("bench-%Y%m%d-%H%M%S.json")
    parser.add_argument("--json", type=Path, metavar="FILE", default=Path(when), help="every run (default: bench-TIME)")
    parser.add_argument("--runs", type=Path, metavar="FOLDER", help="new folder for logs; default: a temporary one")
    given = parser.parse_args()
    for path in filter(None, (given.json, given.runs)):
        if path.exists() or not path.absolute().parent.is_dir():
            parser.error(f"{path}: exists, or is in a folder that does not; give a new name")
    for name, default in DEFAULTS[given.network].items():
        setattr(given, name, getattr(given, name) or default)
    cycle = CYCLE[given.network]
    if given.warm_up % cycle or given.steps % cycle:
        parser.error(f"--network {given.network}: --warm-up and --steps must be multiples of {cycle}")
    alone = given.ranks == 1 or given.network == "stylegan2"
    given.programs = [*ONE[given.device], *([] if alone else SEVERAL[given.device])]
    for pattern in given.only or ():
        if not fnmatch.filter(PROGRAMS, pattern):
            parser.error(f"--only {pattern}: no such program; there are {known}")
    if given.only:
        given.programs = [name for name in PROGRAMS if any(fnmatch.fnmatch(name, each) for each in given.only)]
    if given.network == "stylegan2" and (several := [name for name in given.programs if name in SEVERAL["cpu"]]):
        parser.error(f"--network stylegan2 is for one process; --only names {', '.join(several)}")
    for name in list(given.programs):
        if why := missing(name):
            given.programs.remove(name)
            print(f"left out: {name}: {why}")
    if not given.programs:
        parser.error("none of these programs can run here")
    return given


def words(text: str) -> list[str]:
    """Split words at commas."""
    return [word.strip() for word in text.split(",")]


def positive(text: str) -> int:
    """Parse a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 1")
    return int(text)


def missing(program: str) -> str:
    """Return the reason why a program cannot run here; empty if it can."""
    if program in ("torch", "torch-compile", "ddp") and not (TORCH.exists() and MADE.is_file() and MADE.stat().st_size):
        return f"there is no {TORCH.relative_to(ROOT)}; benchmarks/peers/setup.sh makes it"
    if program.endswith("-mpi"):
        return "" if "mpi" in built_with() and shutil.which("mpirun") else "there is no mpirun, or no Horovod for it"
    return ""


def ranks_of(program: str, ranks: int) -> int:
    """Number of ranks, or of replicas of one process."""
    return ranks if program in SEVERAL["cpu"] else 1


def clean_environment() -> None:
    """Remove variables of launchers and libraries; oneDNN's kernels are on for all, as hvdgan turns them on."""
    foreign = ("HOROVOD_", "TF_NUM_", "OMPI_MCA", "OMPI_COMM", "PMI", "SLURM_", "OMP_", "TORCH", "XLA_")
    for name in [name for name in os.environ if name.startswith(foreign)]:
        del os.environ[name]
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    os.environ |= {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "1"}


def commands(program: str, work: Work) -> list[tuple[list[str], dict[str, str]]]:
    """Return the commands that together are a program, each with its own environment variables."""
    settings = json.dumps(vars(work))
    if program.startswith("hvdgan"):
        return [(hvdgan(program, work), {})]
    if program in ("torch", "torch-compile"):
        return [([str(TORCH), str(HERE / "torch_peers.py"), program, settings], {})]
    if program == "ddp":
        run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(work.ranks)]
        return [([str(TORCH), *run, str(HERE / "torch_peers.py"), program, settings], {})]
    script = [sys.executable, str(HERE / "keras_peers.py"), program.partition("-")[0], settings]
    if program == "keras-jit":
        script[2] = program
    if program == "multiworker":
        addresses = [f"localhost:{free_port()}" for _ in range(work.ranks)]
        tasks = [{"cluster": {"worker": addresses}, "task": {"type": "worker", "index": n}} for n in range(work.ranks)]
        return [(script, {"TF_CONFIG": json.dumps(task)}) for task in tasks]
    launcher = ["horovodrun", f"--{program.partition('-')[2]}", "-np", str(work.ranks)]
    return [([*launcher, *script] if program.startswith("horovod") else script, {})]


def hvdgan(program: str, work: Work) -> list[str]:
    """Return the command of hvdgan.train, with defaults for all features that the other programs do not have."""
    way = program.partition("-")[2]
    launched = ["hvdgan.launch", f"--{way}", "-np", str(work.ranks), "train"]
    settings = {
        "recipe": work.network,
        "data": "synthetic",
        "image-size": work.image_size,
        "nf": work.nf,
        **OPTIONS[work.network],
        "global-batch-size": work.batch_size * work.ranks,
        "precision": work.precision,
        "steps": work.warm_up + work.steps,
        # One record after the warm-up and one after the last step, between which the time is measured; no samples and
        # checkpoints before the last step.
        "log-every": work.warm_up,
        "sample-every": 0,
        "checkpoint-every": 0,
        "report": "never",
        "run-dir": f"{work.out}/run",
    }
    flags = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    started = launched if way in ("mpi", "gloo") else ["hvdgan.train"]
    return [sys.executable, "-m", *started, *flags]


def free_port() -> int:
    """Find a free port."""
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def measure(program: str, work: Work, timeout: float) -> Run:
    """Run a program once; raises Failed if it fails, or if its ranks do not hold the same weights at the end."""
    out = Path(work.out)
    out.mkdir(parents=True)
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[: work.ranks]))
    bound = ["taskset", "-c", cores] if work.device == "cpu" else []
    begun = time.time()
    with busy_gpu() as busy, ThreadPoolExecutor(work.ranks) as pool:
        futures = [
            pool.submit(processes.run, [*bound, *words], out / f"log-{number}.txt", timeout, out, more)
            for number, (words, more) in enumerate(commands(program, work))
        ]
        records = times_of_records(out / "run" / "metrics.jsonl", lambda: all(each.done() for each in futures))
    if errors := [line for future in futures for line in future.result().errors]:
        raise Failed("\n    ".join(errors))
    found = from_hvdgan(work, records) if program.startswith("hvdgan") else from_reports(work)
    images = work.steps * work.batch_size * work.ranks
    rates = {"images_per_sec": images / (found["end"] - found["begin"]), "start_seconds": found["first"] - begun}
    shares = [share for at, share in busy if found["begin"] < at < found["end"]]
    return {**rates, "peak_mb": found["peak_mb"], **({"gpu_busy": statistics.mean(shares)} if shares else {})}


def times_of_records(path: Path, ended: Callable[[], bool]) -> dict[int, float]:
    """Note the time at which the record of each step is written to hvdgan's metrics.jsonl, which has none."""
    times: dict[int, float] = {}
    read = 0
    while not ended():
        if path.exists() and path.stat().st_size > read:
            text = path.read_text(encoding="utf-8")
            read = len(text.encode())
            for step in re.findall(r'"step": (\d+)', text):
                times.setdefault(int(step), time.time())
        time.sleep(0.01)
    return times


def from_hvdgan(work: Work, records: dict[int, float]) -> dict[str, float]:
    """The times of a run, which include the work between steps, and its peak memory.

    The end of the first step is estimated: the warm-up's end minus its other steps, at the duration of later ones.
    """
    run = Path(work.out, "run")
    for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        # A loss is missing if every step since the last record was skipped.
        if not LOSSES[work.network] <= {k for k, v in json.loads(line).items() if v is not None}:
            raise Failed(f"a loss is not finite: {line}")
    begin, end = records[work.warm_up], records[work.warm_up + work.steps]
    first = begin - (work.warm_up - 1) * (end - begin) / work.steps
    peak = re.search(r"peak memory of a \w+ ([\d,.e+]+) GB", (run / "log.txt").read_text(encoding="utf-8"))
    assert peak is not None
    return {"first": first, "begin": begin, "end": end, "peak_mb": 1000 * float(peak[1].replace(",", ""))}


def from_reports(work: Work) -> dict[str, float]:
    """The times of the slowest rank, and the memory of the largest."""
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(Path(work.out).glob("rank-*.json"))]
    if not reports:
        raise Failed(f"no rank has written its report in {work.out}")
    if any(report["weights"] != reports[0]["weights"] for report in reports):
        raise Failed("the ranks do not hold the same weights in the end")
    return {name: max(report[name] for report in reports) for name in ("first", "begin", "end", "peak_mb")}


@contextlib.contextmanager
def busy_gpu() -> Iterator[list[tuple[float, float]]]:
    """Collect the shares of the time in which the first GPU computes, several times a second, with their times."""
    found: list[tuple[float, float]] = []
    if not shutil.which("nvidia-smi"):
        yield found
        return
    query = ["nvidia-smi", "--id=0", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "200"]
    process = subprocess.Popen(query, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(lambda: [(time.time(), line.strip()) for line in process.stdout])
        try:
            yield found
        finally:
            process.terminate()
            found += [(at, int(text) / 100) for at, text in reading.result() if text.isdecimal()]


def machine() -> str:
    """Describe the machine."""
    gpus = [line.partition(" (")[0] for line in output_of(["nvidia-smi", "-L"]).splitlines()]
    cores = len(os.sched_getaffinity(0))
    return ", ".join([f"{cores} cores of {cpu_name()}", *gpus, time.strftime("%Y-%m-%d")])


def table(runs: list[Run]) -> str:
    """Format medians with ranges as Markdown, and below them hvdgan's rates over those of each other program."""
    by_key: dict[tuple[Any, ...], dict[int, Run]] = {}
    for run in runs:
        key = run["precision"], run["batch_size"], run["ranks"], run["program"]
        by_key.setdefault(key, {})[run["repeat"]] = run
    lines = [f"| precision | images | ranks | program | {' | '.join(FIGURES)} |", "|---" * (4 + len(FIGURES)) + "|"]
    for key, each in by_key.items():
        cells = [
            spread([run[name] for run in each.values() if name in run], places) for name, places in FIGURES.items()
        ]
        lines.append(f"| {' | '.join(map(str, key))} | {' | '.join(cells)} |")
    lines += ["", "| precision | images | ranks | program | against | ratio of images/s |", "|---|---|---|---|---|---|"]
    for key, ours in by_key.items():
        for other, theirs in by_key.items():
            if key[3].startswith("hvdgan") and key[:3] == other[:3] and not other[3].startswith("hvdgan"):
                # Within a repeat, so that a slow minute of the machine affects both.
                ratios = [ours[n]["images_per_sec"] / theirs[n]["images_per_sec"] for n in ours.keys() & theirs.keys()]
                lines.append(f"| {' | '.join(map(str, key))} | {other[3]} | {spread(ratios, 2)} |")
    return "\n".join(lines)


def spread(values: list[float], places: int) -> str:
    """The median, and the smallest and the largest value."""
    if not values:
        return ""
    middle, low, high = (f"{each:,.{places}f}" for each in (statistics.median(values), min(values), max(values)))
    return f"{middle} ({low} to {high})"


if __name__ == "__main__":
    sys.exit(main())
