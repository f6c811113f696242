"""The command hvdgan launch: starts ranks by horovodrun, mpirun or srun, also in the script of a Slurm job."""

from hvdgan.cli import start

start.begin(__name__)

import argparse
import contextlib
import functools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from hvdgan.cli.app import main_of
from hvdgan.errors import RunError, UserError
from hvdgan.launching import starters
from hvdgan.launching.hosts import cores
from hvdgan.launching.supervision import Supervised

_USAGE = """hvdgan launch [-np N] [-H HOST:SLOTS,...] [--gloo | --mpi | --srun] [more] [COMMAND] [ARGUMENTS ...]

Starts a command of hvdgan (default: train) as several ranks, on this machine or on several. The hosts must see this
Python and the run folder under the same path, and let ssh in without a password.

  hvdgan launch -np 4 train --recipe dcgan --global-batch-size 256
  hvdgan launch -H node1:4,node2:4 train --recipe dcgan --global-batch-size 512

At SIGTERM, SIGUSR2 or Ctrl-C the ranks save and stop with exit code 75. A second signal ends them at once. If a rank
fails, all end, and the exit code is that of the failure. Ranks on other hosts get only the environment variables of
Python, TensorFlow, Horovod, MPI, NCCL, CUDA and hvdgan, because other users can see the command line of ssh."""
# horovodrun's ssh waits for ever for a host that is cut off.
_SSH = """#!/bin/sh
exec {ssh} -o ServerAliveInterval=10 -o ServerAliveCountMax=3 -o ConnectTimeout=30 "$@"
"""


@main_of()
def main(arguments: list[str]) -> int:
    parser = _parser()
    own, words = parser.split(arguments)
    given = parser.parse_args(own)
    if given.help:
        parser.print_help()
        return 0
    _check(given)
    if given.list_hosts:
        print(*(f"{name}:{slots}" for name, slots in _hosts(given, up=True)), sep="\n")
        return 0
    module, words = _module(given.m, words)
    words += _seed(given.seeds_in, words)
    if module == "hvdgan.train" and not given.image:  # in an image --config and recipe may be other files
        try:
            from hvdgan.training.command import check_flags  # here, since it needs more than the standard library
        except ModuleNotFoundError as error:
            raise UserError(start.what_is_missing(error)) from error
        check_flags(words)
    with tempfile.TemporaryDirectory(prefix="hvdgan-launch-") as scratch:
        starter = _starter(given, Path(scratch))
        command = [*starter.words, *_python(given), "-m", module, *words]
        if given.print:
            print(shlex.join(command))
            return 0
        with _staged(given.stage_data, words) as data:
            print("+", shlex.join([*command, *data]), file=sys.stderr, flush=True)
            run = Supervised(starter, module, is_job=given.max_requeues is not None)
            code = run.wait([*command, *data])
    if given.max_requeues is not None and code == 75:
        _requeue(given.max_requeues, run)
    return code


class _Parser(argparse.ArgumentParser):
    """The flags of this command, which precede the command that it starts; a mistake is one line."""

    def split(self, words: list[str]) -> tuple[list[str], list[str]]:
        """Split the words at the first that is neither a flag of this command nor the value of one, or after --."""
        end = 0
        # Not public; tests/commands/test_launch.py needs it: argparse cannot stop at a flag that it does not know.
        while end < len(words) and (flag := self._option_string_actions.get(words[end].partition("=")[0])):
            end += 1 if flag.nargs == 0 or "=" in words[end] else 2
        return words[:end], words[end + 1 :] if words[end : end + 1] == ["--"] else words[end:]

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message.removeprefix('argument ')}; see hvdgan launch --help")


def _parser() -> _Parser:
    wide = functools.partial(argparse.HelpFormatter, max_help_position=24, width=120)
    parser = _Parser(usage=_USAGE, formatter_class=wide, add_help=False, allow_abbrev=False)
    add = parser.add_argument_group("Ranks").add_argument
    ranks = "number of ranks (default: all slots; on this machine one per GPU, or per core without GPUs)"
    add("-np", type=_number(1), metavar="N", help=ranks)
    add("-H", "--hosts", help="HOST:SLOTS,... (default: the hosts of the Slurm allocation; otherwise this machine)")
    add("--hostfile", metavar="FILE", help='the same in a file, one host per line: "host slots=4", "host:4" or "host"')
    add("--slots", type=_number(1), default=1, metavar="N", help="ranks on hosts without SLOTS (default: 1)")
    add("-m", metavar="MODULE", help="module to run instead of a command of hvdgan")
    add("--print", action="store_true", help="print the command and do nothing")
    add("--help", action="store_true", help="this text")
    title = "How they meet (default: over MPI, if Horovod was built with it and mpirun is there; otherwise over Gloo)"
    add = (group := parser.add_argument_group(title)).add_argument
    way = group.add_mutually_exclusive_group().add_argument
    kinds = {
        "gloo": "by horovodrun over Gloo",
        "mpi": "by the mpirun of Open MPI 4, Open MPI 5 or MPICH; the variable MPIRUN names another one",
        "srun": "as tasks of this Slurm job; the variable SRUN_MPI names the PMI (default: pmix)",
    }
    for name, what in kinds.items():
        way(f"--{name}", dest="launcher", action="store_const", const=name, help=what)
    way("--launcher", choices=kinds, metavar="NAME", help="gloo, mpi or srun, as the flags of these names")
    networks = "network interfaces for Gloo, comma-separated (default: those that all hosts have)"
    add("--interface", metavar="NAMES", help=networks)
    add("--ssh-port", type=_number(1), metavar="N", help="port of ssh, for Gloo")
    add("--ssh-identity", metavar="FILE", help="key of ssh, for Gloo")
    title = "Elastic runs, over Gloo: a lost host does not end the run, and new ones are taken in"
    add = parser.add_argument_group(title).add_argument
    add("--elastic", action="store_true", help="start one; --hostfile is read every second")
    add("--min-np", type=_number(1), default=1, metavar="N", help="fewest ranks; with fewer the run waits (default: 1)")
    add("--max-np", type=_number(1), metavar="N", help="most ranks (default: all slots)")
    add("--elastic-timeout", type=_number(1), metavar="N", help="seconds to wait for --min-np slots (default: 600)")
    retries = "seconds until a lost host is tried again, from LOW on doubled each time (default: 20,600)"
    add("--cooldown", type=_cooldown, default=(20, 600), metavar="LOW,HIGH", help=retries)
    add("--list-hosts", action="store_true", help="print the hosts that there are now, and do nothing")
    add = parser.add_argument_group("In a Slurm job, as hvdgan slurm writes it").add_argument
    requeues = "requeue the job if it was asked to stop, at most COUNT times"
    add("--max-requeues", type=_number(0), metavar="COUNT", help=requeues)
    add("--stage-data", metavar="PATH", help="file or folder to copy to each node's own disk, which replaces --data")
    add("--seeds-in", metavar="FOLDER", help="train with the seed of this task of an array, in FOLDER/seed-N")
    add("--image", help="container image in which the ranks run")
    runtime: Any = {"choices": ["apptainer", "pyxis"], "default": "apptainer", "metavar": "NAME"}
    add("--runtime", **runtime, help="apptainer (default) or pyxis, srun's plugin for enroot")
    add("--image-python", default="python", metavar="PATH", help="Python in the image (default: python)")
    mounts = "folders that the container sees beside the working folder, comma-separated"
    add("--mounts", default="", metavar="FOLDERS", help=mounts)
    return parser


def _number(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,7}", text) or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is no whole number of at least {least}")
        return int(text)

    return read


def _cooldown(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]{1,4}),([0-9]{1,4})", text)
    if match is None or not 0 < int(match[1]) <= int(match[2]) <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is not LOW,HIGH in seconds, from 1 to 3600")
    return int(match[1]), int(match[2])


def _check(given: argparse.Namespace) -> None:
    """Refuse flags of Slurm jobs outside of one, and a launcher that cannot start an elastic run."""
    of_jobs = {"--srun": given.launcher == "srun", "--max-requeues": given.max_requeues is not None}
    of_jobs |= {"--stage-data": given.stage_data, "--seeds-in": given.seeds_in, "--image": given.image}
    found = [flag for flag, is_given in of_jobs.items() if is_given]
    if found and "SLURM_JOB_ID" not in os.environ:
        raise UserError(f"{found[0]}: is for Slurm jobs, and this is none; hvdgan slurm writes one")
    if given.elastic and given.launcher in ("mpi", "srun"):
        raise UserError(f"--{given.launcher}: elastic runs go over Gloo; leave it out")


def _module(given: str | None, words: list[str]) -> tuple[str, list[str]]:
    """The module that the ranks run, and its arguments: those of hvdgan train, unless a command or -m names another."""
    if given:
        return given, words
    if not words or words[0].startswith("--"):
        return "hvdgan.train", words
    name, *rest = words
    if not (name.isidentifier() and Path(__file__).with_name(f"{name}.py").exists()):
        raise UserError(f"{name}: no flag of hvdgan launch and no command of hvdgan; see hvdgan launch --help")
    return f"hvdgan.{name}", rest


def _hosts(given: argparse.Namespace, *, up: bool = False) -> starters.Slots:
    """The hosts that are named, or those of the Slurm allocation; empty: this machine."""
    if given.hosts is not None:
        found = starters.read_hosts(given.hosts, "-H", given.slots)
    elif given.hostfile is not None:
        found = starters.hosts_of_file(given.hostfile, given.slots)
    elif "SLURM_JOB_NODELIST" in os.environ:
        found = starters.hosts_of_allocation(up=up)
    else:
        return []
    ranks = sum(count for _, count in found)
    if (given.np or 1) > ranks and not up:
        raise UserError(f"-np {given.np}: the hosts have {ranks} slots; say how many each has with HOST:SLOTS")
    return found


def _starter(given: argparse.Namespace, scratch: Path) -> starters.Starter:
    if given.launcher == "srun" or given.image:
        named = {"-np": given.np, "--hosts": given.hosts, "--hostfile": given.hostfile, "--interface": given.interface}
        if unused := [flag for flag, value in named.items() if value]:
            raise UserError(f"{unused[0]}: the Slurm job says which ranks srun starts; leave it out")
        return starters.srun(*(_container(given) if given.image and given.runtime == "pyxis" else []))
    slots = _hosts(given, up=given.elastic)
    ranks = sum(count for _, count in slots)
    values = {
        "--network-interfaces": given.interface,
        "--ssh-port": given.ssh_port,
        "--ssh-identity-file": given.ssh_identity,
        "--elastic-timeout": given.elastic_timeout,
    }
    options = [word for flag, value in values.items() if value for word in (flag, str(value))]
    if given.elastic:
        return _elastic(given, slots, options, scratch)
    np = given.np or ranks or starters.count_gpus() or len(cores())
    if given.launcher == "mpi":
        if options:
            raise UserError(f"{options[0]}: is for Gloo; Open MPI has OMPI_MCA_btl_tcp_if_include and plm_rsh_args")
        return starters.mpirun(np, slots)
    if given.launcher == "gloo":
        return starters.horovodrun(np, slots, *options)
    return starters.over_any(np, slots, *options)


def _elastic(given: argparse.Namespace, slots: starters.Slots, options: list[str], scratch: Path) -> starters.Starter:
    if not slots:
        raise UserError("--elastic: no hosts; give -H or --hostfile, or start it in a Slurm allocation")
    if len(slots) == 1 and not given.interface:
        raise UserError("--elastic: with one host the network of later hosts is unknown; name it with --interface")
    ranks = sum(count for _, count in slots)
    np = given.np or min(ranks, given.max_np or ranks)
    if given.min_np > np:
        raise UserError(f"--min-np {given.min_np}: more than the {np} ranks to start with (-np)")
    if given.max_np and np > given.max_np:
        raise UserError(f"--max-np {given.max_np}: fewer than the {np} ranks to start with (-np)")
    if given.hosts is not None:
        named = ["--hosts", given.hosts]
    else:
        named = ["--hostfile", os.path.abspath(given.hostfile)] if given.hostfile else []
    # One string, because horovodrun passes it to a shell.
    lister = [sys.executable, "-m", "hvdgan.launch", *named, "--slots", str(given.slots), "--list-hosts"]
    bounds = ["--min-np", str(given.min_np), *(["--max-np", str(given.max_np)] if given.max_np else [])]
    bounds += ["--blacklist-cooldown-range", *map(str, given.cooldown)]
    options = [*bounds, "--host-discovery-script", shlex.join(lister), "--disable-cache", *options]
    # The remaining ranks wait that long in Gloo for a host that was cut off without closing its connections.
    starter = starters.horovodrun(np, [], *options, HOROVOD_GLOO_TIMEOUT_SECONDS="120")
    (scratch / "ssh").write_text(_SSH.format(ssh=shlex.quote(shutil.which("ssh") or "/usr/bin/ssh")))
    (scratch / "ssh").chmod(0o755)
    starter.environment["PATH"] = f"{scratch}{os.pathsep}{starter.environment.get('PATH', os.defpath)}"
    return starter


def _python(given: argparse.Namespace) -> list[str]:
    """The words that run Python on a rank: this one, or that of a container."""
    if not given.image:
        return [sys.executable]
    return [*(_container(given) if given.runtime == "apptainer" else []), given.image_python]


def _container(given: argparse.Namespace) -> list[str]:
    """The words that run a command in a container: apptainer's, or the options of srun with which pyxis does."""
    here = os.getcwd()
    seen = [here, *filter(None, [_place() if given.stage_data else "", *given.mounts.split(",")])]
    if given.runtime == "pyxis":
        mounts = ",".join(f"{folder}:{folder}" for folder in seen)
        return [f"--container-image={given.image}", f"--container-mounts={mounts}", f"--container-workdir={here}"]
    gpus = ["--nv"] if starters.count_gpus() else []
    return ["apptainer", "exec", *gpus, "--bind", ",".join(seen), "--pwd", here, given.image]


def _place() -> str:
    """The folder on each node's own disk for the data of this job."""
    disk = os.environ.get("SLURM_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    return f"{disk}/hvdgan-{os.environ['SLURM_JOB_ID']}"


@contextlib.contextmanager
def _staged(path: str | None, words: list[str]) -> Iterator[list[str]]:
    """Copy --stage-data to each node, for the time of the run; returns the trainer's flag that names it there."""
    if not path:
        yield []
        return
    _refuse(words, "--data", "--stage-data sets it")
    if not os.path.exists(path):
        raise UserError(f"--stage-data {path}: no such file or folder")
    place, nodes = _place(), os.environ["SLURM_JOB_NUM_NODES"]
    once = ["srun", "--mpi=none", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
    copy = 'rm -rf -- "$2" && mkdir -p -- "$2" && cp -RL -- "$1" "$2"/'
    print(f"copying {path} to {place} on {nodes} node(s)", file=sys.stderr, flush=True)
    try:
        if subprocess.run([*once, "sh", "-c", copy, "sh", path, place]).returncode:
            raise RunError(f"--stage-data {path}: could not be copied to {place} on every node")
        yield ["--data", os.path.join(place, os.path.basename(path.rstrip("/")))]
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):  # srun would wait for a lost node
            subprocess.run([*once, "rm", "-rf", "--", place], timeout=60)


def _seed(folder: str | None, words: list[str]) -> list[str]:
    """The flags of the trainer for this task of an array of seeds."""
    if not folder:
        return []
    for flag in ("--seed", "--run-dir"):
        _refuse(words, flag, "the array sets it")
    seed = os.environ.get("SLURM_ARRAY_TASK_ID", "")
    if not seed.isdecimal():
        raise UserError("--seeds-in: this is no task of an array; submit the job with sbatch --array=0-4")
    return ["--seed", seed, "--run-dir", f"{folder}/seed-{seed}"]


def _refuse(words: list[str], flag: str, why: str) -> None:
    if flag in (word.partition("=")[0].replace("_", "-") for word in words):
        raise UserError(f"{flag}: {why}; leave it out")


def _requeue(most: int, run: Supervised) -> None:
    """Return a job whose ranks have stopped on request to the queue, and say so, or why not."""
    how = "stopped before the first step" if "before the first step" in run.why_stopped else "saved and stopped"
    restarts = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    if run.ended_by_slurm:
        return _say_of_job(f"{how}; Slurm has ended it, so it is not requeued from here")
    if "/stop exists" in run.why_stopped:
        return _say_of_job(f"{how}; as the stop file asks; remove it, then the same sbatch resumes the run")
    if restarts >= most:
        said = f"requeued {restarts} times already (MAX_REQUEUES={most})"
        return _say_of_job(f"{how}; {said}; the same sbatch resumes the run")
    _say_of_job(f"{how}; requeueing, {restarts + 1} of at most {most} times")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # A task of an array needs both numbers: the array's number alone would requeue all tasks.
    task = [os.environ[name] for name in ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID") if name in os.environ]
    job = "_".join(task) if len(task) == 2 else os.environ["SLURM_JOB_ID"]
    if subprocess.run(["scontrol", "requeue", job]).returncode:
        _say_of_job("scontrol requeue failed; the same sbatch resumes the run")


def _say_of_job(text: str) -> None:
    print(f"{os.environ.get('SLURM_JOB_NAME', 'job')}: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
