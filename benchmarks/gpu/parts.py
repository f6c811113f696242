"""The parts of the script: each yields its checks one after another."""

import json
import math
import re
import shutil
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from processes import Done

from gpu.setting import ROOT, Check, Setting, judged
from hvdgan.checkpoints.contents import difference
from hvdgan.checkpoints.files import find, read_tensors

FLOAT32 = {"NVIDIA_TF32_OVERRIDE": "0"}
"""variable that lets convolutions compute in float32, which TF32 would round to 10 bits of mantissa"""
BOUND = 1e-4
"""largest distance of weights and losses of runs that compute the same"""
EQUAL = {"dcgan": ["--norm", "none", "--learning-rate", "1e-4"], "wgan_gp": ["--sync-batch-norm"]}
"""recipes to compare: convolutions and sigmoids alone; a gradient of a gradient, and BatchNorm over all ranks.

Adam's first step has the sign of the gradient, so a weight whose gradient is nearly zero may take the other way after
another rounding. In these networks this is rare, and costs 5e-5 at a learning rate of 1e-4; DCGAN with BatchNorm,
sngan, stylegan2, vae_gan and pix2pix differ by 1e-4 to 2e-2 if only the order of summation changes."""
FIRST = {
    "dcgan": "--nf 16 --global-batch-size 32",
    "sngan": "--nf 4 --global-batch-size 16",
    "stylegan2": "--nf 8 --latent-size 64 --global-batch-size 16 --path-length-weight 2",
    "calo3d": "--nf 2 --global-batch-size 8",
}
"""flags of the recipes whose first steps are compared"""
STAGES = {
    "completion": "--stages completion={0},discriminator={0},joint={0}",
    "r3gan": "--stages burn_in={0},rest={0}",
    "srgan": "--stages pixel={0},adversarial={0}",
}
"""flags for the steps of recipes of several stages"""
SMALL = {
    "calo3d": "--nf 2 --latent-size 4 --r1-every 2",
    "completion": "--nf 8",
    "downscale": "--nf 2 --blocks 1 --noise-channels 2",
    "sngan": "--nf 2 --d-updates 1",
    "stylegan2": "--nf 2 --latent-size 8 --r1-every 2 --path-length-every 2",
    "wgan_gp": "--nf 2 --n-critic 1",
}
"""flags for networks that train in a moment; --nf 2 for the others"""
OPTIONS = ["--accumulate 2", "--compression fp16", "--sync-batch-norm"]
"""options that change how a step is computed"""


def build(setting: Setting) -> Iterator[Check]:
    """Let hvdgan.doctor look at this installation, alone and on all ranks, whose all-reduce it measures."""
    for ranks in sorted({1, setting.most}):
        out = setting.out / f"doctor-{ranks}.json"
        words = ["--json", str(out), "--run-dir", str(setting.out / "runs")]
        done = setting.launch(f"doctor-{ranks}", "hvdgan.doctor", words, ranks)
        if not out.exists():
            yield judged(f"doctor, {ranks} ranks", done, complaint="hvdgan.doctor gives no answer")
            continue
        facts = json.loads(out.read_text(encoding="utf-8"))
        # horovodrun that cannot drive the MPI is no obstacle: the launch takes Gloo then.
        bad = [row for row in facts["rows"] if row["verdict"] == "fail" and row["check"] != "MPI"]
        complaint = f"{bad[0]['check']}: {bad[0]['found']}" if bad else ""
        if not setting.cpu and not complaint:
            complaint = "" if facts["ranks"] and facts["ranks"][0]["gpus"] else "TensorFlow sees no GPU"
            if ranks > 1 and not (facts["horovod"] or {}).get("nccl"):
                complaint = "Horovod was built without NCCL: gradients would go through main memory"
        rates = facts.get("allreduce", [])
        found = (
            f"{rates[-1]['bytes_per_sec'] / 1e9:.3g} GB/s with {rates[-1]['bytes'] / 2**20:.0f} MiB" if rates else ""
        )
        complaint = complaint or ("" if facts["size"] == ranks else "the ranks did not all join")
        done = done if complaint else done._replace(code=0)
        yield judged(f"doctor, {ranks} ranks", done, found, complaint, table_of(done, "check"))


def arithmetic(setting: Setting) -> Iterator[Check]:
    """Compare convolutions, products and BatchNorm with their gradients with float64."""
    words = [sys.executable, "-m", "gpu.arithmetic", *(["--cpu"] if setting.cpu else [])]
    runs = [setting.run("arithmetic", words), setting.run("arithmetic-float32", [*words, "--exact"], **FLOAT32)]
    done = max(runs, key=lambda each: each.code != 0)
    lines = [json.loads(line) for each in runs for line in each.text.splitlines() if line.startswith('{"name"')]
    for line in lines:
        worst = max(line["errors"], key=line["errors"].__getitem__)
        found = f"relative errors up to {line['errors'][worst]:.2g} ({worst}), allowed {line['bound']:.0e}"
        done_well = done._replace(code=0) if line["passed"] else done
        yield judged(line["name"], done_well, found, "" if line["passed"] else found)
    if len(lines) < 4:
        yield judged("the rest", done, complaint="not all was computed")


def demo(setting: Setting) -> Iterator[Check]:
    """Run the demonstration by its own script, on one rank."""
    words = [ROOT / "launch" / "demo.sh", "--max-steps", "10" if setting.quick else "400"]
    done = setting.run("demo", words, RANKS="1", RUN_DIR=str(setting.out / "runs" / "demo"))
    yield judged("launch/demo.sh", done, last_line(done))


def equality(setting: Setting) -> Iterator[Check]:
    """Train on the CPU, on one rank and on all, or on two that share a GPU; then run the tests of two ranks.

    After 20 steps of the same global batches the weights of each network and of its average differ by at most 1e-4 of
    their norm, and the mean losses by as much.
    """

    several = max(setting.most, 2)

    def trained(recipe: str, ranks: int) -> tuple[Done, Path]:
        run_dir = setting.out / "runs" / f"equal-{recipe}-{ranks}"
        words = (
            f"--recipe {recipe} --nf 4 --global-batch-size {16 * several} --max-steps 20 --log-every 20 --report never"
        )
        flags = [*words.split(), *EQUAL[recipe], "--run-dir", str(run_dir)]
        if not ranks:  # the CPU; without srun, which would set the variable for its tasks again
            command = [sys.executable, "-m", "hvdgan.train", *flags]
            return setting.run(f"equality-{recipe}-cpu", command, CUDA_VISIBLE_DEVICES=""), run_dir
        flags += ["--share-gpu"] if ranks > setting.most else []
        return setting.launch(f"equality-{recipe}-{ranks}", "hvdgan.train", flags, ranks, **FLOAT32), run_dir

    for recipe in EQUAL:
        single, on_cpu = trained(recipe, 1), trained(recipe, 0)
        yield _compared(f"{recipe}: one rank and the CPU", on_cpu, single)
        together = trained(recipe, several)
        yield _compared(
            f"{recipe}: {several} ranks{' on one GPU' if setting.most == 1 else ''} and one", single, together
        )
    if setting.most > 1:
        names = ("reduction", "recipes")[: 1 if setting.quick else 2]
        files = [str(ROOT / "tests" / "parallel" / f"test_{name}.py") for name in names]
        words = ["-q", "-x", "--color=no", "-p", "no:cacheprovider", "--timeout", "900", *files]
        done = setting.launch("equality-tests", "pytest", words, 2, **FLOAT32)
        complaint = "" if done.text.count(" passed") == 2 else "not both ranks ran the tests"
        yield judged(f"tests/parallel on two ranks: {', '.join(names)}", done, complaint=complaint)


def first_steps(setting: Setting) -> Iterator[Check]:
    """Compare the losses and the norms of the gradients of the first step on the GPU with those on the CPU.

    Both begin with the same weights, images and noise, so nothing but rounding is between them. The same run with the
    CPU's other kernels tells how much rounding is to be expected.
    """
    for recipe in (name for name in FIRST if name in setting.recipes):
        words = f"--recipe {recipe} {FIRST[recipe]} --max-steps 3 --log-every 1 --report never --eval-samples 0"
        data, failed = _showers(setting, small=True) if recipe == "calo3d" else ("--data digits", None)
        if failed:
            yield judged("showers", failed)
            continue
        found: dict[str, dict[str, float]] = {}
        on_cpu = {"CUDA_VISIBLE_DEVICES": ""}
        places = {"gpu": FLOAT32, "cpu": on_cpu, "other": {**on_cpu, "TF_ENABLE_ONEDNN_OPTS": "0"}}
        for place, more in places.items():
            run_dir = setting.out / "runs" / f"first-{recipe}-{place}"
            flags = [*words.split(), *data.split(), "--sample-every", "0", "--run-dir", str(run_dir)]
            done = setting.run(f"first-{recipe}-{place}", [sys.executable, "-m", "hvdgan.train", *flags], **more)
            if done.code != 0:
                break
            found[place] = {k: v for k, v in records(run_dir)[0].items() if k.endswith(("/loss", "/gradient_norm"))}
        if done.code != 0:
            yield judged(f"{recipe}: first step", done)
            continue
        apart = {
            place: {name: abs(found[place][name] - true) / abs(true) for name, true in found["cpu"].items() if true}
            for place in ("gpu", "other")
        }
        worst, yardstick = (max(each.values()) for each in apart.values())
        said = f"losses and gradients differ by up to {worst:.2g}, with other kernels of the CPU by {yardstick:.2g}"
        table = [
            f"{name}: {found['cpu'][name]:.9g} {value:.2g} {apart['other'][name]:.2g}"
            for name, value in apart["gpu"].items()
        ]
        yield judged(f"{recipe}: first step", done, said, "" if worst <= BOUND else said, table)


def _compared(name: str, one: tuple[Done, Path], other: tuple[Done, Path]) -> Check:
    for done, _ in (one, other):
        if done.code != 0:
            return judged(name, done)
    apart = distances(one[1], other[1])
    found = f"weights differ by {apart['weights']:.2g} of their norm, losses by {apart['losses']:.2g}"
    complaint = "" if all(value <= BOUND for value in apart.values()) else f"{found}; allowed are {BOUND:.0e}"
    return judged(name, other[0], found, complaint)


def distances(one: Path, other: Path) -> dict[str, float]:
    """Return the largest distances of the weights of a network or an average, and of a mean loss, over their norms."""
    found: dict[str, float] = {}
    for kind, numbers in (("weights", _weights), ("losses", _losses)):
        mine, theirs = numbers(one), numbers(other)
        same = mine and {name: value.shape for name, value in mine.items()} == {n: v.shape for n, v in theirs.items()}
        pairs = [(value, theirs[name]) for name, value in mine.items()] if same else []
        apart = [np.linalg.norm(their - my) / max(np.linalg.norm(my), 1e-30) for my, their in pairs]
        found[kind] = float(np.max(apart)) if apart else math.inf  # NaN if one of them is
    return found


def _weights(run_dir: Path) -> dict[str, np.ndarray]:
    """Return all weights of each network and of each average as one vector: a bias may be nearly zero."""
    found = defaultdict(list)
    for name, value in sorted(read_tensors(find(run_dir), ("networks/", "ema/"))):
        found["/".join(name.split("/")[:2])].append(np.ravel(value))
    return {name: np.concatenate(values) for name, values in found.items()}


def _losses(run_dir: Path) -> dict[str, np.ndarray]:
    last = records(run_dir)[-1]
    losses = {name: value for name, value in last.items() if name.endswith("/loss")}
    return {name: np.array([math.nan if value is None else value]) for name, value in losses.items()}


def resume(setting: Setting) -> Iterator[Check]:
    """Compare an interrupted and an uninterrupted run: the same bits with --deterministic; otherwise what differs."""
    steps, stop = 40, 17
    for ranks in sorted({1, setting.most}):
        for flags in (["--deterministic"], []):
            name = " ".join([f"{ranks} ranks, {steps} steps at once, and {stop} and then the rest", *flags])
            folders = [setting.out / "runs" / f"resume-{ranks}{len(flags)}-{what}" for what in ("whole", "parts")]
            words = (
                f"--recipe dcgan --nf 8 --log-every 10 --report never --global-batch-size {16 * setting.most}".split()
            )
            for number, (folder, count) in enumerate(zip([*folders, folders[1]], (steps, stop, steps), strict=True)):
                given = [*words, *flags, "--max-steps", str(count), "--run-dir", str(folder)]
                done = setting.launch(f"resume-{ranks}{len(flags)}-{number}", "hvdgan.train", given, ranks)
                if done.code != 0:
                    break
            if done.code != 0:
                yield judged(name, done)
                continue
            facts = difference(find(folders[0]), find(folders[1]))
            apart = [each["name"] for kind in ("changed", "unlike") for each in facts[kind]]
            apart += [*facts["only_in_first"], *facts["only_in_second"]]
            found = f"{facts['identical']} tensors have the same bits, {len(apart)} differ {', '.join(apart[:5])}"
            resumed = f"resuming at step {stop} of {steps}" in done.text
            complaint = "" if resumed else "the second command did not resume the run"
            if flags and (apart or not facts["identical"]):
                complaint = found
            yield judged(name, done, found, complaint)


def tests(setting: Setting) -> Iterator[Check]:
    """Run the tests that need a GPU (marker gpu), or with --cpu the same tests on the CPU."""
    words = ["-m", "not gpu" if setting.cpu else "gpu", "-p", "no:cacheprovider", "-q", "-rfE", "--color=no"]
    words += ["-o", "addopts=--strict-markers --strict-config", str(ROOT / "tests" / "gpu")]
    done = setting.run("tests", [sys.executable, "-m", "pytest", *words])
    ran = " passed" in last_line(done)
    yield judged("tests/gpu", done, last_line(done), "" if ran else "no test has run")


def speed(setting: Setting) -> Iterator[Check]:
    """Compare DCGAN-64 with Keras and PyTorch, in turn, by benchmarks/peers/bench.py; what tells most comes first."""
    sizes = "--nf 2 --image-size 32 --warm-up 2 --steps 6 --repeats 1" if setting.small else "--warm-up 50 --steps 400"
    for precision in ("mixed_bfloat16", "float32"):
        for images in ((2,) if setting.small else (128, 64, 16)) if precision in setting.precisions else ():
            name = f"speed-{precision}-{images}"
            words = f"--device {'cpu' if setting.cpu else 'gpu'} --ranks {setting.here} --precision {precision} {sizes}"
            words += f" --timeout {setting.timeout:.0f}"
            command = [sys.executable, ROOT / "benchmarks" / "peers" / "bench.py", *words.split()]
            files = ["--json", setting.out / f"{name}.json", "--runs", setting.out / name]
            done = setting.run(name, [*command, "--batch-size", str(images), *files], limits=20)
            yield judged(
                f"{precision}, {images} images a rank",
                done,
                table=table_of(done, "| precision | images | ranks | program | images"),
            )


def bench(setting: Setting) -> Iterator[Check]:
    """Measure steps by hvdgan.bench: their parts, memory, and the ranks against as many independent copies."""
    ranks = ",".join(str(2**power) for power in range(setting.most.bit_length()) if 2**power <= setting.most)
    size = "--image-size 32 --nf 2 --steps 2 --repeats 1" if setting.small else "--image-size 64 --steps 100"
    for precision in setting.precisions[:2]:
        for recipe, images in (("dcgan", 128), ("stylegan2", 32)):
            if recipe not in setting.recipes:
                continue
            name = f"bench-{recipe}-{precision}"
            words = f"--recipe {recipe} --data synthetic --scaling weak --ranks {ranks} --precision {precision} {size}"
            words += f" --local-batch-size {4 if setting.small else images} --timeout {setting.timeout}"
            command = [sys.executable, "-m", "hvdgan.bench", *words.split(), "--json", setting.out / f"{name}.json"]
            done = setting.run(name, command, limits=10)
            yield judged(f"{recipe}, {precision}", done, table=table_of(done, "Efficiency"))


def table_of(done: Done, head: str) -> list[str]:
    """Return the lines of an output from the last one that begins with a word on."""
    lines = done.text.splitlines()
    begins = [number for number, line in enumerate(lines) if line.startswith(head)]
    return lines[begins[-1] :] if begins else []


def recipes(setting: Setting) -> Iterator[Check]:
    """Train every recipe in every precision, and DCGAN on all ranks with each option: finite losses, rate, memory."""
    for precision in setting.precisions:
        for recipe in setting.recipes:
            twice = "--data digits" if recipe == "cyclegan" else ""  # a folder, or so, for each of two domains
            data = f"--data digits {twice} --image-size {32 if setting.small else 64}"
            if recipe == "calo3d":
                data, failed = _showers(setting, small=setting.small)
                if failed:
                    yield judged("showers", failed)
                    continue
            extra = "--path-length-weight 2" if recipe == "stylegan2" else ""
            words = f"--recipe {recipe} {data} {extra} --global-batch-size {8 if setting.small else 64}"
            yield _trained(setting, f"{recipe}, {precision}", recipe, f"{words} --precision {precision}")
        for option in OPTIONS if "dcgan" in setting.recipes else ():
            size, images = (32, 4) if setting.small else (64, 64)
            words = f"--recipe dcgan --data synthetic --image-size {size} --global-batch-size {images * setting.most}"
            name = f"dcgan {option}, {precision}, {setting.most} ranks"
            yield _trained(setting, name, "dcgan", f"{words} --precision {precision} {option}", setting.most)


def _showers(setting: Setting, *, small: bool) -> tuple[str, Done | None]:
    """Make showers, unless they are there; return the flags that train on them, and the command if it failed."""
    showers = setting.out / "runs" / "showers.npz"
    showers.parent.mkdir(parents=True, exist_ok=True)
    size = "--num 64 --size 8" if small else "--num 2000 --size 32"
    make = [sys.executable, ROOT / "examples" / "data" / "showers.py", "--out", showers, *size.split()]
    made = None if showers.exists() else setting.run("showers", make)
    flags = f"--data {showers}:ECAL --axes DHW --conditions energy,theta --values power:0.85"
    return flags, made if made and made.code != 0 else None


def _trained(setting: Setting, name: str, recipe: str, words: str, ranks: int = 1) -> Check:
    """Train without samples and checkpoints, and check that losses are finite."""
    label = re.sub(r"\W+", "-", name)
    run_dir = setting.out / "runs" / label
    steps = 8 if setting.quick else 100
    words += (
        f" {STAGES.get(recipe, '--steps {0}').format(steps)} {SMALL.get(recipe, '--nf 2') if setting.small else ''}"
    )
    words += f" --log-every {steps // 4} --report never --sample-every 0 --checkpoint-every 0 --run-dir {run_dir}"
    done = setting.launch(label, "hvdgan.train", words.split(), ranks)
    if done.code != 0:
        return judged(name, done)
    found = records(run_dir)
    rates = {record["stage"]: record["images_per_sec"] for record in found}  # the last record of each stage
    said = [f"{rate:,.0f} images/s ({stage})" for stage, rate in rates.items()]
    peaks = re.findall(r"peak memory of a \w+ ([\d,.e+]+) GB", (run_dir / "log.txt").read_text(encoding="utf-8"))
    said += [f"{max(float(peak.replace(',', '')) for peak in peaks)} GB"] if peaks else []
    shutil.rmtree(run_dir)  # its checkpoints take hundreds of megabytes
    return judged(name, done, "; ".join(said), complaint_of(found))


def records(run_dir: Path) -> list[dict[str, Any]]:
    """Read the records of a run's steps."""
    lines = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [record for line in lines if "images_per_sec" in (record := json.loads(line))]


def complaint_of(found: Sequence[dict[str, Any]]) -> str:
    """Say what is wrong with the losses of a run: one that is not finite, or a stage without any; empty if nothing."""
    last: dict[str, list[str]] = {}
    for record in found:
        losses = {name: value for name, value in record.items() if name.endswith("/loss")}
        last[record["stage"]] = list(losses)
        for name, value in losses.items():
            if value is None or not math.isfinite(value):
                return f"step {record['step']}: {name} is not finite"
    skipped = [stage for stage, losses in last.items() if not losses]
    return f"stage {skipped[0]}: every update was skipped" if skipped else "" if found else "there are no metrics"


def last_line(done: Done) -> str:
    """Return the last line of an output."""
    return (done.text.strip().splitlines() or [""])[-1].strip("= ")


PARTS: dict[str, Callable[[Setting], Iterator[Check]]] = {
    each.__name__: each
    for each in (build, arithmetic, demo, first_steps, equality, resume, tests, speed, bench, recipes)
}
"""what tells most in the shortest time comes first, because a machine may be had for some minutes only"""
