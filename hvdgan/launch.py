"""The command hvdgan launch: starts ranks by horovodrun, mpirun or srun, also in the script of a Slurm job."""

from hvdgan.cli import start

start.begin(__name__)

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from hvdgan.cli.app import main_of
from hvdgan.diagnostics import preflight
from hvdgan.errors import RunError, UserError
from hvdgan.launching import starters
from hvdgan.launching.launched import VAIN_REQUEUES, requeued
from hvdgan.launching.programs import output_of
from hvdgan.launching.supervision import Supervised
from hvdgan.runs import events
from hvdgan.training.command import check_flags

_HELP = """usage: hvdgan launch [-np N] [-H HOST:SLOTS,...] [--gloo | --mpi | --srun] [more] [COMMAND] [ARGUMENTS ...]

Starts a command of hvdgan (default: train) as several ranks, on this machine or on several. The hosts must see this
Python and the run folder under the same path, and let ssh in without a password.

  hvdgan launch -np 4 train --recipe dcgan --global-batch-size 256
  hvdgan launch -H node1:4,node2:4 train --recipe dcgan --global-batch-size 512

SIGTERM, SIGUSR2 or Ctrl-C: the ranks save and stop, exit code 75; a second signal ends them at once. If a rank fails,
all end, and the exit code is that of the failure. Ranks on other hosts get no variables of the environment but those
of Python, TensorFlow, Horovod, MPI, NCCL, CUDA and hvdgan, because ssh's command line shows them to others.

Ranks:
  -np N                 number of ranks (default: all slots; on this machine one per GPU, or per core without GPUs)
  -H, --hosts HOSTS     HOST:SLOTS,... (default: the hosts of the Slurm allocation; otherwise this machine)
  --hostfile FILE       the same in a file, one host per line: "host slots=4", "host:4" or "host"
  --slots N             ranks on hosts without SLOTS (default: 1)
  -m MODULE             module to run instead of a command of hvdgan
  --print               print the command and do nothing
  --help                this text

How they meet (default: over MPI where Horovod and mpirun are there for it, otherwise over Gloo):
  --gloo                by horovodrun over Gloo
  --mpi                 by the mpirun of Open MPI 4, Open MPI 5 or MPICH; the variable MPIRUN names another one
  --srun                as tasks of this Slurm job; the variable SRUN_MPI names the PMI (default: pmix)
  --interface NAMES     network interfaces for Gloo, comma-separated (default: those that all hosts have)
  --ssh-port N          port of ssh, for Gloo
  --ssh-identity FILE   key of ssh, for Gloo

Elastic runs, over Gloo: a lost host does not end the run, and new ones are taken in; --hostfile is read every second:
  --elastic             start one
  --min-np N            fewest ranks; with fewer the run waits for hosts (default: 1)
  --max-np N            most ranks (default: all slots)
  --elastic-timeout N   time to wait for --min-np slots (seconds; default: 600)
  --cooldown LOW,HIGH   time until a lost host is tried again, from LOW on doubled each time (seconds; default: 20,600)
  --list-hosts          print the hosts that there are now, and do nothing

In a Slurm job, as hvdgan.slurm writes it:
  --launcher NAME       gloo, mpi or srun, as the flags of these names
  --max-requeues COUNT  requeue the job if it was asked to stop, at most COUNT times
  --spare-nodes COUNT   check the nodes first, and leave COUNT of them idle, the broken or slow ones
  --stage-data PATH     file or folder to copy to each node's own disk, which replaces --data
  --seeds-in FOLDER     train with the seed of this task of an array, in FOLDER/seed-N
  --image IMAGE         container image in which the ranks run
  --runtime NAME        apptainer (default) or pyxis, srun's plugin for enroot
  --image-python PATH   Python in the image (default: python)
  --mounts FOLDERS      folders that the container sees beside the working folder, comma-separated
"""
# Each flag above with its name and the kind of its value; an empty kind: it has none.
_FLAGS = {
    flag: (names.split(", ")[-1], kind)
    for names, kind in re.findall(r"^  (-[\w, -]*?)(?: ([A-Z][A-Z,]*))? {2,}", _HELP, re.M)
    for flag in names.split(", ")
}
# horovodrun's ssh waits for ever for a host that is cut off.
_SSH = """#!/bin/sh
exec {ssh} -o ServerAliveInterval=10 -o ServerAliveCountMax=3 -o ConnectTimeout=30 "$@"
"""


@main_of()
def main(arguments: list[str]) -> int:
    given, words = _read(arguments)
    if "--help" in given:
        print(_HELP, end="")
        return 0
    if "--list-hosts" in given:
        print(*(f"{name}:{slots}" for name, slots in _hosts(given, up=True)), sep="\n")
        return 0
    module, words = _module(given, words)
    words += _seed(given, words)
    if module == "hvdgan.train" and "--image" not in given:  # in an image --config and recipe may be other files
        check_flags(words)
    is_job = "--max-requeues" in given
    most, broken = int(given.get("--max-requeues", 0)), list[str]()
    if is_job and "--elastic" not in given and os.environ.get("SLURM_JOB_NUM_NODES", "1") != "1":
        given.setdefault("--spare-nodes", "0")
    if "--spare-nodes" in given and "--print" not in given:
        broken, is_enough = _leave_out(given, words)
        if not is_enough:
            why = f"{', '.join(broken)} broken, spare nodes: {given['--spare-nodes']}"
            if (vain := _vain_requeues(words)) < VAIN_REQUEUES:
                _back_into_the_queue(why, most, broken)
            else:
                _say_of_job(f"{why}; the ranks have not started since {vain} requeues, so the job ends")
            return 1
    with tempfile.TemporaryDirectory(prefix="hvdgan-launch-") as scratch:
        starter = _starter(given, Path(scratch))
        command = [*starter.words, *_python(given), "-m", module, *words]
        if "--print" in given:
            print(shlex.join(command))
            return 0
        with _staged(given, words) as data:
            print("+", shlex.join([*command, *data]), file=sys.stderr, flush=True)
            run = Supervised(starter, module, is_job=is_job)
            code = run.wait([*command, *data])
    if is_job and code == 75:
        _requeue(most, run, broken)
    return code


def _read(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Split the flags of this command, by their long names, from the words that follow them."""
    given = {}
    while words and words[0].partition("=")[0] in _FLAGS:
        named, equals, value = words[0].partition("=")
        flag, kind = _FLAGS[named]
        words = words[1:]
        if kind and not equals:
            if not words or words[0] == "--":
                raise UserError(f"{named} needs a value; see hvdgan launch --help")
            value, words = words[0], words[1:]
        if kind in ("N", "COUNT") and not re.fullmatch(r"[1-9]\d{0,6}" if kind == "N" else r"\d{1,6}", value):
            least = 1 if kind == "N" else 0
            raise UserError(f"{named} {value}: expected a whole number of at least {least}; see hvdgan launch --help")
        if equals and not kind:
            raise UserError(f"{named}: takes no value; see hvdgan launch --help")
        given[flag] = value
    if (name := given.get("--launcher")) is not None:
        if name not in ("gloo", "mpi", "srun"):
            raise UserError(f"--launcher {name}: expected gloo, mpi or srun")
        given[f"--{name}"] = ""
    flags = ("--srun", "--max-requeues", "--spare-nodes", "--stage-data", "--seeds-in", "--image")
    of_jobs = [flag for flag in flags if flag in given]
    if of_jobs and "SLURM_JOB_ID" not in os.environ:
        raise UserError(f"{of_jobs[0]}: is for Slurm jobs, and this is none; hvdgan slurm writes one")
    if len(ways := [flag for flag in ("--gloo", "--mpi", "--srun") if flag in given]) > 1:
        raise UserError(f"{' and '.join(ways)}: choose one")
    if "--elastic" in given and {"--mpi", "--srun"} & given.keys():
        raise UserError(f"{ways[0]}: elastic runs go over Gloo; leave it out")
    return given, words[1:] if words[:1] == ["--"] else words


def _module(given: dict[str, str], words: list[str]) -> tuple[str, list[str]]:
    """The module that the ranks run, and its arguments: those of hvdgan.train, unless a command is named."""
    if "-m" in given:
        return given["-m"], words
    if not words or words[0].startswith("--"):
        return "hvdgan.train", words
    name, *rest = words
    if not (name.isidentifier() and Path(__file__).with_name(f"{name}.py").exists()):
        raise UserError(f"{name}: no flag of hvdgan launch and no command of hvdgan; see hvdgan launch --help")
    return f"hvdgan.{name}", rest


def _hosts(given: dict[str, str], *, up: bool = False) -> starters.Slots:
    """The hosts that are named, or those of the Slurm allocation; empty: this machine."""
    slots = int(given.get("--slots", 1))
    if "--hosts" in given:
        found = starters.read_hosts(given["--hosts"], "-H", slots)
    elif "--hostfile" in given:
        found = starters.hosts_of_file(given["--hostfile"], slots)
    elif "SLURM_JOB_NODELIST" in os.environ:
        found = starters.hosts_of_allocation(up=up)
    else:
        return []
    ranks = sum(count for _, count in found)
    if int(given.get("-np", 1)) > ranks and not up:
        raise UserError(f"-np {given['-np']}: the hosts have {ranks} slots; say how many each has with HOST:SLOTS")
    return found


def _starter(given: dict[str, str], scratch: Path) -> starters.Starter:
    if "--srun" in given or "--image" in given:
        if unused := [flag for flag in ("-np", "--hosts", "--hostfile", "--interface") if flag in given]:
            raise UserError(f"{unused[0]}: the Slurm job says which ranks srun starts; leave it out")
        return starters.srun(*_pyxis(given))
    slots = _hosts(given, up="--elastic" in given)
    ranks = sum(count for _, count in slots)
    names = {
        "--interface": "--network-interfaces",
        "--ssh-port": "--ssh-port",
        "--ssh-identity": "--ssh-identity-file",
        "--elastic-timeout": "--elastic-timeout",
    }
    options = [word for flag, name in names.items() if flag in given for word in (name, given[flag])]
    if "--elastic" in given:
        return _elastic(given, slots, options, scratch)
    np = int(given.get("-np", ranks or starters.count_ranks()))
    if "--mpi" in given:
        if options:
            raise UserError(f"{options[0]}: is for Gloo; Open MPI has OMPI_MCA_btl_tcp_if_include and plm_rsh_args")
        return starters.mpirun(np, slots)
    if "--gloo" in given:
        return starters.horovodrun(np, slots, *options)
    return starters.over_any(np, slots, *options)


def _elastic(given: dict[str, str], slots: starters.Slots, options: list[str], scratch: Path) -> starters.Starter:
    if not slots:
        raise UserError("--elastic: no hosts; give -H or --hostfile, or start it in a Slurm allocation")
    if len(slots) == 1 and "--interface" not in given:
        raise UserError("--elastic: with one host the network of later hosts is unknown; name it with --interface")
    ranks = sum(count for _, count in slots)
    low, high = int(given.get("--min-np", 1)), int(given.get("--max-np", 0))
    np = int(given.get("-np", min(ranks, high or ranks)))
    if low > np:
        raise UserError(f"--min-np {low}: more than the {np} ranks to start with (-np)")
    if high and np > high:
        raise UserError(f"--max-np {high}: fewer than the {np} ranks to start with (-np)")
    first, _, last = given.get("--cooldown", "20,600").partition(",")
    if not (first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last) <= 3600):
        raise UserError(f"--cooldown {given['--cooldown']}: expected LOW,HIGH in seconds, from 1 to 3600")
    named = {name: given[name] for name in ("--hosts", "--hostfile", "--slots") if name in given}
    if "--hostfile" in named:
        named["--hostfile"] = os.path.abspath(named["--hostfile"])
    # One string, because horovodrun passes it to a shell.
    words = [sys.executable, "-m", "hvdgan.launch", *(word for pair in named.items() for word in pair), "--list-hosts"]
    bounds = [
        "--min-np",
        str(low),
        *(["--max-np", str(high)] if high else []),
        "--blacklist-cooldown-range",
        first,
        last,
    ]
    options = [*bounds, "--host-discovery-script", shlex.join(words), "--disable-cache", *options]
    # The remaining ranks wait that long in Gloo for a host that was cut off without closing its connections.
    starter = starters.horovodrun(np, [], *options, HOROVOD_GLOO_TIMEOUT_SECONDS="120")
    (scratch / "ssh").write_text(_SSH.format(ssh=shlex.quote(shutil.which("ssh") or "/usr/bin/ssh")))
    (scratch / "ssh").chmod(0o755)
    starter.environment["PATH"] = f"{scratch}{os.pathsep}{starter.environment.get('PATH', os.defpath)}"
    return starter


def _python(given: dict[str, str]) -> list[str]:
    """The words that run Python on a rank: this one, or that of a container."""
    if "--image" not in given:
        return [sys.executable]
    runtime = given.get("--runtime", "apptainer")
    if runtime not in ("apptainer", "pyxis"):
        raise UserError(f"--runtime {runtime}: expected apptainer or pyxis")
    return [*(_container(given) if runtime == "apptainer" else []), given.get("--image-python", "python")]


def _pyxis(given: dict[str, str]) -> list[str]:
    """The options of srun with which pyxis runs a container; none without it."""
    return _container(given) if given.get("--runtime") == "pyxis" else []


def _container(given: dict[str, str]) -> list[str]:
    here, image = os.getcwd(), given["--image"]
    seen = [here, *filter(None, [_place() if given.get("--stage-data") else "", *given.get("--mounts", "").split(",")])]
    if given.get("--runtime") == "pyxis":
        mounts = ",".join(f"{folder}:{folder}" for folder in seen)
        return [f"--container-image={image}", f"--container-mounts={mounts}", f"--container-workdir={here}"]
    gpus = ["--nv"] if starters.count_gpus() else []
    return ["apptainer", "exec", *gpus, "--bind", ",".join(seen), "--pwd", here, image]


def _place() -> str:
    """The folder on each node's own disk for the data of this job."""
    disk = os.environ.get("SLURM_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    return f"{disk}/hvdgan-{os.environ['SLURM_JOB_ID']}"


@contextlib.contextmanager
def _staged(given: dict[str, str], words: list[str]) -> Iterator[list[str]]:
    """Copy --stage-data to each node, for the time of the run; returns the trainer's flag that names it there."""
    path = given.get("--stage-data")
    if not path:
        yield []
        return
    _refuse(words, "--data", "--stage-data sets it")
    if not os.path.exists(path):
        raise UserError(f"--stage-data {path}: no such file or folder")
    place, nodes = _place(), int(os.environ.get("SLURM_NNODES", os.environ["SLURM_JOB_NUM_NODES"]))
    once = _once(nodes)
    copy = 'rm -rf -- "$2" && mkdir -p -- "$2" && cp -RL -- "$1" "$2"/'
    print(f"copying {path} to {place} on {nodes} node(s)", file=sys.stderr, flush=True)
    try:
        if subprocess.run([*once, "sh", "-c", copy, "sh", path, place]).returncode:
            raise RunError(f"--stage-data {path}: could not be copied to {place} on every node")
        yield ["--data", os.path.join(place, os.path.basename(path.rstrip("/")))]
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):  # srun would wait for a lost node
            subprocess.run([*once, "rm", "-rf", "--", place], timeout=60)


def _once(nodes: int) -> list[str]:
    """The words that run a command once on each of some nodes of this job."""
    return ["srun", "--mpi=none", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]


def _seed(given: dict[str, str], words: list[str]) -> list[str]:
    """The flags of the trainer for this task of an array of seeds."""
    if "--seeds-in" not in given:
        return []
    for flag in ("--seed", "--run-dir"):
        _refuse(words, flag, "the array sets it")
    seed = os.environ.get("SLURM_ARRAY_TASK_ID", "")
    if not seed.isdecimal():
        raise UserError("--seeds-in: this is no task of an array; submit the job with sbatch --array=0-4")
    return ["--seed", seed, "--run-dir", f"{given['--seeds-in']}/seed-{seed}"]


def _leave_out(given: dict[str, str], words: list[str]) -> tuple[list[str], bool]:
    """Check the nodes of this job, and leave --spare-nodes of them out of what starts ranks.

    Returns:
        The broken nodes, and whether there were enough spare ones for them.
    """
    spare, slots = int(given["--spare-nodes"]), dict(starters.hosts_of_allocation())
    if not len(slots) > spare:
        raise UserError(f"--spare-nodes {spare}: the job has {len(slots)} node(s); ask for more with --nodes")
    if len(slots) == 1:
        return [], True
    begin = time.monotonic()
    broken, doubtful = preflight.check(
        lambda node: [*_once(1), f"--nodelist={node}", *_pyxis(given), *_python(given)],
        [*slots],
        _run_dir(words),
    )
    found = broken | doubtful
    wanted = [*broken, *(node for node in reversed(slots) if node in doubtful), *reversed(slots)]
    idle = [*dict.fromkeys(wanted)][:spare]
    for node, fault in found.items():
        print(f"hvdgan: {node}: {fault}{'; it is left out' if node in idle else ''}", file=sys.stderr)
    unused = "".join(f"; {node} is spare" for node in idle if node not in found)
    print(
        f"hvdgan: checked {len(slots)} nodes in {time.monotonic() - begin:.1f} s{unused}", file=sys.stderr, flush=True
    )
    if idle and len(broken) <= spare:
        kept = [tasks for node, tasks in slots.items() if node not in idle]
        # What srun reads as its flags. Slurm's plugin for PMIx needs the names of the job's nodes as they are.
        os.environ |= {"SLURM_EXCLUDE": ",".join(idle), "SLURM_NNODES": str(len(kept)), "SLURM_NTASKS": str(sum(kept))}
    return [*broken], len(broken) <= spare


def _run_dir(words: list[str]) -> Path:
    """The run folder that the trainer's words name, or the folder in which it makes one."""
    found = re.findall(r"\0--run[-_]dir[=\0]([^\0]*)", "\0".join(["", *words]))
    return Path((found and found[-1]) or "runs")


def _vain_requeues(words: list[str]) -> int:
    """How many times this job was requeued since its ranks last started, in the run folder or in one just below."""
    job, restarts = requeued() or ("", 0)
    files = [path for pattern in (events.FILE, f"*/{events.FILE}") for path in _run_dir(words).glob(pattern)]
    starts = [start for path in files for start in events.starts(path)]
    return restarts - max((start.slurm_restart for start in starts if start.slurm_job == job), default=0)


def _refuse(words: list[str], flag: str, why: str) -> None:
    if flag in (word.partition("=")[0].replace("_", "-") for word in words):
        raise UserError(f"{flag}: {why}; leave it out")


def _requeue(most: int, run: Supervised, broken: list[str]) -> None:
    """Return a job whose ranks have stopped on request to the queue, and say so, or why not."""
    how = "stopped before the first step" if "before the first step" in run.why_stopped else "saved and stopped"
    if run.ended_by_slurm:
        _say_of_job(f"{how}; Slurm has ended it, so it is not requeued from here")
    elif "/stop exists" in run.why_stopped:
        _say_of_job(f"{how}; as the stop file asks; remove it, then the same sbatch resumes the run")
    else:
        _back_into_the_queue(how, most, broken)


def _back_into_the_queue(why: str, most: int, broken: list[str]) -> None:
    """Requeue the job, unless it was requeued too often, and keep it off broken nodes."""
    restarts = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    if restarts >= most:
        _say_of_job(f"{why}; requeued {restarts} times already (MAX_REQUEUES={most}); the same sbatch resumes the run")
        return
    without = f" without {','.join(broken)}" if broken else ""
    _say_of_job(f"{why}; requeueing{without}, {restarts + 1} of at most {most} times")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # A task of an array needs both numbers: the array's number alone would requeue all tasks.
    task = [os.environ[name] for name in ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID") if name in os.environ]
    job = "_".join(task) if len(task) == 2 else os.environ["SLURM_JOB_ID"]
    if subprocess.run(["scontrol", "requeue", job]).returncode:
        _say_of_job("scontrol requeue failed; the same sbatch resumes the run")
    elif broken:  # Slurm changes the list of a waiting job only, so not before, and kills this one soon
        known = re.search(r" ExcNodeList=([^\s(]+)", output_of(["scontrol", "show", "job", "--oneliner", job]))
        without = ",".join([*([known[1]] if known else []), *broken])
        if subprocess.run(["scontrol", "update", f"JobId={job}", f"ExcNodeList={without}"]).returncode:
            _say_of_job(f"scontrol did not exclude {without}; sbatch --exclude={without} does")


def _say_of_job(text: str) -> None:
    print(f"{os.environ.get('SLURM_JOB_NAME', 'job')}: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
