"""The command hvdgan slurm: writes the batch script of a run, and submits it with --submit."""

from hvdgan.cli import start

start.begin(__name__)

import dataclasses
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter, Token

from hvdgan.cli.app import main_of, run_app
from hvdgan.errors import RunError, UserError
from hvdgan.launching.starters import built_with
from hvdgan.settings.config import Config
from hvdgan.settings.file import as_words, read_runs
from hvdgan.settings.own_code import refuse_foreign_settings
from hvdgan.settings.types import Count, CountOrNever

if TYPE_CHECKING:
    from hvdgan.training.command import Command

_HELP = """Write the Slurm batch script of a run; the arguments after -- are those of hvdgan train.

hvdgan slurm --nodes 4 --gpus-per-node 4 --time-limit 24:00:00 -- --recipe dcgan > job.sbatch"""
_ASKS = Parameter(group=Group("Resources of the job", sort_key=1))
_RUNS = Parameter(group=Group("Launch", sort_key=2))
# The formats that sbatch accepts: minutes, minutes:seconds, hours:minutes:seconds, days-hours, and so on.
_TIME = re.compile(r"(?:(\d+)-(\d+)(?::(\d+)(?::(\d+))?)?|(\d+)(?::(\d+))?(?::(\d+))?)")


def _fits(pattern: str, expected: str) -> Callable[[type, Sequence[Token]], str]:
    def read(_: type, tokens: Sequence[Token]) -> str:
        text = tokens[0].value
        if not re.fullmatch(pattern, text):
            raise ValueError(f'"{text}" is not {expected}.')
        return text

    return read


# Values in an #SBATCH line must not begin another option or line.
_word = _fits(r"[\w.,:+*&|()\[\]@%/=-]+", "a word without spaces")
_time = _fits(_TIME.pattern, "a time such as 90, 24:00:00 or 2-12 (minutes, hours:minutes:seconds, days-hours)")
_seeds = _fits(r"\d+(-\d+)?(,\d+(-\d+)?)*(%[1-9]\d*)?", "a list of seeds such as 0-4, 1,5,9 or 0-15%4 (4 at a time)")
_line = _fits(r"[^\n\r\0]+", "one line")
Word = Annotated[str, Parameter(converter=_word)]
Line = Annotated[str, Parameter(converter=_line)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """Resources and launch of a job; the fields are the flags."""

    nodes: Annotated[Count, _ASKS] = 1
    """number of nodes"""
    gpus_per_node: Annotated[CountOrNever, _ASKS] = 0
    """GPUs per node; each gets a rank"""
    tasks_per_node: Annotated[Count | None, _ASKS] = None
    """ranks per node; default: one per GPU, or one if there are none"""
    cpus_per_task: Annotated[Count, _ASKS] = 4
    """cores per rank"""
    time: Annotated[str, Parameter(name="--time-limit", converter=_time), _ASKS] = "24:00:00"
    """time limit of the job, as minutes, hours:minutes:seconds or days-hours"""
    partition: Annotated[Word | None, _ASKS] = None
    """partition of the cluster"""
    account: Annotated[Word | None, _ASKS] = None
    """account that is charged"""
    qos: Annotated[Word | None, _ASKS] = None
    """quality of service"""
    constraint: Annotated[Word | None, _ASKS] = None
    """features that the nodes must have, such as a100"""
    mem: Annotated[Word | None, _ASKS] = None
    """memory per node, such as 64G; 0: all of it"""
    job_name: Annotated[Word, _ASKS] = "hvdgan"
    """name of the job"""
    output: Annotated[Word | None, _ASKS] = None
    """file for the output of the job; default: %x-%j.out, that is, its name and number"""
    signal_seconds: Annotated[Count, _ASKS] = 300
    """time before the end of the job at which the ranks are asked to save and stop (seconds)"""
    test: Annotated[bool, _RUNS] = False
    """a short job on these nodes that trains nothing: its ranks run hvdgan.doctor; default of --time-limit: 5"""
    max_requeues: Annotated[CountOrNever, _RUNS] = 20
    """largest number of times that the job returns to the queue to resume the run"""
    launcher: Annotated[Literal["srun", "mpi", "gloo", "elastic"], _RUNS] = "srun"
    """srun, if Horovod is built with MPI; or, over ssh between the nodes, mpi (mpirun), gloo (horovodrun) or elastic"""
    mpi: Annotated[Word, _RUNS] = "pmix"
    """srun's interface to the MPI that Horovod was built with; srun --mpi=list shows the possible ones"""
    min_np: Annotated[Count, _RUNS] = 1
    """smallest number of ranks with which an elastic job resumes"""
    seeds: Annotated[str | None, Parameter(converter=_seeds), _RUNS] = None
    """seeds, one run each, as an array of jobs: 0-4, or 0-15%4 for at most 4 at a time"""
    array: Annotated[Line | None, _RUNS] = None
    """file of the settings of several runs (.toml, .yaml or .json), each a task of an array of jobs: a list of tables,
    in TOML [[runs]], or one table whose lists give a run for each combination"""
    runs: Annotated[Line | None, _RUNS] = None
    """folder of the run folders: seed-0 and so on of --seeds, run-0 and so on of --array; default: runs/seeds, or
    runs/sweep"""
    container: Annotated[Line | None, _RUNS] = None
    """container image in which the ranks run, with TensorFlow, Horovod and hvdgan's other dependencies"""
    runtime: Annotated[Literal["apptainer", "pyxis"], _RUNS] = "apptainer"
    """program that runs the container; pyxis is srun's plugin for enroot"""
    mounts: Annotated[Line, _RUNS] = ""
    """folders that the container sees, besides the one in which the job is submitted; comma-separated"""
    stage_data: Annotated[Line, _RUNS] = ""
    """file or folder that is copied to each node's own disk and replaces --data"""
    python: Annotated[Line, _RUNS] = sys.executable
    """Python on the nodes that has hvdgan; default: this one"""

    def check(self) -> None:
        """Refuse settings with which the job would fail, or would ignore a flag."""
        seconds = _seconds(self.time)
        if not self.signal_seconds <= 65535:
            raise UserError(f"--signal-seconds {self.signal_seconds}: Slurm takes at most 65535")
        if 0 < seconds <= self.signal_seconds:
            raise UserError(
                f"--signal-seconds {self.signal_seconds}: the job has no more than {seconds} s "
                f"(--time-limit {self.time}); take fewer"
            )
        if self.gpus_per_node and self.ranks_per_node > self.gpus_per_node:
            raise UserError(
                f"--tasks-per-node {self.tasks_per_node}: a node has {self.gpus_per_node} GPUs (--gpus-per-node), and "
                "each rank needs one"
            )
        if self.launcher == "elastic" and self.nodes < 2:
            raise UserError(
                "--launcher elastic: with one node, losing it ends the run; take --nodes 2 or more, or srun"
            )
        if self.min_np > self.nodes * self.ranks_per_node:
            raise UserError(f"--min-np {self.min_np}: the job has {self.nodes * self.ranks_per_node} ranks")
        if self.seeds is not None and self.array is not None:
            raise UserError("--seeds, --array: each makes an array of jobs; give the file a list under seed instead")
        if self.container is not None and self.launcher != "srun":
            raise UserError(f"--launcher {self.launcher}: a container's ranks are started by srun; leave it out")
        starts_here = self.container is None and self.python == sys.executable
        if starts_here and self.launcher in ("srun", "mpi") and find_spec("horovod") and "mpi" not in built_with():
            raise UserError(f"--launcher {self.launcher}: the Horovod of this Python has no MPI; take --launcher gloo")

    def check_run(self, command: "Command") -> None:
        """Refuse a run that could not be divided among the job's ranks; those of an elastic job may be fewer."""
        from hvdgan.training.batch_sizes import check_batch

        if self.launcher != "elastic":
            check_batch(command.config, command.recipe, self.nodes * self.ranks_per_node)

    @property
    def ranks_per_node(self) -> int:
        """Number of ranks on each node."""
        return self.tasks_per_node or self.gpus_per_node or 1

    @property
    def folder(self) -> str:
        """Folder for the run folders of an array."""
        return self.runs or ("runs/seeds" if self.array is None else "runs/sweep")

    def words_of_runs(self) -> list[list[str]]:
        """The trainer's arguments of each run of --array, with its run folder."""
        if self.array is None:
            return []
        tables = read_runs(Path(self.array), f"--array {self.array}")
        for each in tables:
            refuse_foreign_settings(f"--array {self.array}", each)
        tables = [{"run_dir": f"{self.folder}/run-{number}", **each} for number, each in enumerate(tables)]
        if len({str(each["run_dir"]) for each in tables}) < len(tables):
            raise UserError(f"--array {self.array}: two runs have one run_dir; leave it out, and each gets its own")
        return [as_words(each) for each in tables]


@main_of()
def main(arguments: list[str]) -> None:
    split = arguments.index("--") if "--" in arguments else len(arguments)
    own, of_trainer = arguments[:split], arguments[split + 1 :]
    of_trainer = of_trainer[1:] if of_trainer[:1] == ["train"] else of_trainer  # as hvdgan launch has it

    def command(*, submit: bool = False, job: Annotated[Job, Parameter(name="*")] = Job()) -> None:
        """Print the script, or submit it.

        Parameters
        ----------
        submit:
            hand the script to sbatch instead of printing it
        """
        words = ["hvdgan", "slurm", *(word for word in own if word != "--submit"), *arguments[split:]]
        text = script(job, of_trainer, f"Written by: {shlex.join(words)}")
        if _are_flags(job, of_trainer):
            if submit:
                _submit(text)
            else:
                print(text, end="")

    of_training = ["recipe", "config", *(field.name for field in dataclasses.fields(Config))]
    instead = {f"--{name.replace('_', '-')}": "those of hvdgan train follow --" for name in of_training}
    instead["--gpus"] = "the GPUs of each node are --gpus-per-node"
    run_app(command, own, name="slurm", help_text=_HELP, instead=instead)


def _are_flags(job: Job, arguments: Sequence[str]) -> bool:
    """Refuse what the trainer would refuse; False if its help was asked for, and is printed."""
    try:
        from hvdgan.training.command import parse

        for number, words in enumerate([[]] if job.array is None else job.words_of_runs()):
            try:
                if (command := parse([*arguments, *words])) is None:
                    return False
                job.check_run(command)
            except UserError as error:
                where = "" if job.array is None else f"--array {job.array}, run {number}: "
                raise UserError(f"{where}{error}") from error
        return True
    except ModuleNotFoundError as error:
        if error.name != "tensorflow":
            raise
        if job.container is None:
            raise UserError("TensorFlow is not installed for this Python, which reads the trainer's flags") from error
        print("hvdgan: the trainer's flags were not checked: TensorFlow is not here, but in the image", file=sys.stderr)
        return True


def _submit(text: str) -> None:
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        raise UserError("--submit: there is no sbatch on the PATH; without --submit the script is printed")
    # Slurm makes no folder, and such a job dies without a word.
    if found := re.search(r"#SBATCH --output=([^%\n]*/)", text):
        Path(found[1]).mkdir(parents=True, exist_ok=True)
    done = subprocess.run([sbatch], input=text, capture_output=True, text=True)
    if done.returncode:
        problem = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise RunError(f"--submit: sbatch failed: {problem}")
    print(done.stdout, end="")


def script(job: Job, arguments: Sequence[str] = (), opening: str = "") -> str:
    """Write the batch script of a job, whose arguments for hvdgan train are followed by those given to sbatch."""
    if job.test:
        launcher = "gloo" if job.launcher == "elastic" else job.launcher
        time = "5" if job.time == Job.time else job.time
        job = dataclasses.replace(job, time=time, signal_seconds=60, seeds=None, array=None, launcher=launcher)
    job.check()
    given = [word.partition("=")[0].replace("_", "-") for word in arguments]
    for flag, by, taken in (
        ("--data", "--stage-data", job.stage_data),
        ("--seed", "--seeds", job.seeds),
        ("--run-dir", "--seeds", job.seeds),
        ("--run-dir", "--array", job.array),
    ):
        if taken and flag in given:
            raise UserError(f"{flag}: {by} sets it; leave one out")
    if bad := [word for word in arguments if "\0" in word]:
        raise UserError(f"{bad[0]!r}: a command line cannot hold a null character")
    lines = [
        "#!/usr/bin/env bash",
        *(f"# {line}".rstrip() for line in opening.splitlines()),
        *_head(job),
        "set -euo pipefail",
        "# module load ...  # what Python and MPI need here; the modules of the shell that calls sbatch are there, too",
        "",
        *_settings(job),
        "",
        *_body(job, arguments),
    ]
    return "\n".join(lines) + "\n"


def _head(job: Job) -> Iterator[str]:
    yield f"#SBATCH --job-name={job.job_name}"
    yield f"#SBATCH --nodes={job.nodes}"
    yield "# Ranks and GPUs of each node: give both the same number. --gpus-per-task would hide the other ranks' GPUs."
    yield f"#SBATCH --ntasks-per-node={job.ranks_per_node}"
    yield f"{'' if job.gpus_per_node else '#'}#SBATCH --gres=gpu:{job.gpus_per_node or job.ranks_per_node}"
    yield f"#SBATCH --cpus-per-task={job.cpus_per_task}"
    yield f"#SBATCH --time={job.time}"
    yield f"#SBATCH --partition={job.partition}" if job.partition else "##SBATCH --partition="
    yield f"#SBATCH --account={job.account}" if job.account else "##SBATCH --account="
    for name in ("qos", "constraint"):
        if (value := getattr(job, name)) is not None:
            yield f"#SBATCH --{name}={value}"
    yield f"#SBATCH --mem={job.mem}" if job.mem else "##SBATCH --mem=64G"
    tasks = job.seeds if job.array is None else f"0-{len(job.words_of_runs()) - 1}"
    if tasks is not None:
        what = "seeds; 0-15" if job.array is None else f"runs of {job.array}; {tasks}"
        yield f"# The {what}%4 would run 4 at a time."
        yield f"#SBATCH --array={tasks}"
    yield f"#SBATCH --output={job.output or ('%x-%j.out' if tasks is None else '%x-%A_%a.out')}"
    if job.test:
        return
    before = job.signal_seconds
    yield f"# {before} s before the end Slurm signals this script (B:); the ranks save, and the job is requeued."
    yield f"#SBATCH --signal=B:USR2@{before}"
    yield "#SBATCH --requeue"
    yield "#SBATCH --open-mode=append"
    if job.launcher == "elastic":
        yield "# A lost node does not end the job."
        yield "#SBATCH --no-kill"


def _settings(job: Job) -> Iterator[str]:
    settings: list[tuple[str, Any, str]] = [("PYTHON", job.python, "Python that has hvdgan, on the nodes")]
    if job.launcher == "elastic":
        settings += [("MIN_NP", job.min_np, "smallest number of ranks with which the run continues")]
    else:
        if job.container is None:
            settings += [("LAUNCHER", job.launcher, "srun, or mpi or gloo over ssh between the nodes")]
        settings += [("SRUN_MPI", job.mpi, "PMI of the MPI that Horovod was built with; srun --mpi=list shows all")]
    if job.container is not None:
        settings += [
            ("IMAGE", job.container, "image with TensorFlow, and Horovod built with an MPI that has this PMI"),
            ("RUNTIME", job.runtime, "apptainer, or pyxis (srun's plugin for enroot)"),
            ("IMAGE_PYTHON", "python", "Python with what hvdgan needs: the image's, or that of a .venv made in it"),
            ("MOUNTS", job.mounts, "folders to mount beside the working folder, separated by commas"),
        ]
    if job.seeds is not None:
        settings += [("RUNS", job.folder, "parent of the run folders, seed-0 and so on")]
    if not job.test:
        staged = "file or folder that is copied to each node's own disk and becomes --data"
        settings += [("MAX_REQUEUES", job.max_requeues, "largest number of times that the job is requeued")]
        settings += [("STAGE_DATA", job.stage_data, staged)]
    yield "# Settings; environment variables of the same names, given to sbatch, take precedence."
    defaults = [f"default_{name}={shlex.quote(str(value))}" for name, value, _ in settings if not _plain(value)]
    yield from defaults
    lines = [f'{name}="${{{name}:-{value if _plain(value) else f"$default_{name}"}}}"' for name, value, _ in settings]
    width = max(map(len, lines))
    for line, (_, _, meaning) in zip(lines, settings, strict=True):
        yield f"{line:{width}}  # {meaning}"


def _plain(value: object) -> bool:
    """Check that a value needs no quoting inside of "${NAME:-value}"."""
    return not re.search(r"[^\w./,:+@%=-]", str(value))


def _body(job: Job, arguments: Sequence[str]) -> Iterator[str]:
    if job.launcher == "elastic":
        flags = ['--elastic --min-np "$MIN_NP"']
    elif job.container is None:
        flags = ['--launcher "$LAUNCHER"']
    else:
        flags = ['--image "$IMAGE" --runtime "$RUNTIME" --image-python "$IMAGE_PYTHON" --mounts "$MOUNTS"']
    flags += ['--seeds-in "$RUNS"'] if job.seeds is not None else []
    flags += [] if job.test else ['--max-requeues "$MAX_REQUEUES" --stage-data "$STAGE_DATA"']
    if job.launcher != "elastic":
        yield "export SRUN_MPI"
    if runs := job.words_of_runs():
        yield "# The settings of each run; arguments given to sbatch follow them."
        yield 'case "${SLURM_ARRAY_TASK_ID:-}" in'
        yield from (f'    {number}) set -- {shlex.join(words)} "$@" ;;' for number, words in enumerate(runs))
        yield f'    *) echo "this is no task of the array; submit with --array=0-{len(runs) - 1}" >&2; exit 2 ;;'
        yield "esac"
    signals = "" if job.test else ", passes signals on, and requeues the job"
    yield f"# It starts the ranks{signals}; hvdgan launch --help lists its flags."
    yield 'exec "$PYTHON" -m hvdgan.launch \\'
    yield from (f"    {flag} \\" for flag in flags)
    yield "    doctor" if job.test else f'    train {"".join(f"{shlex.quote(word)} " for word in arguments)}"$@"'


def _seconds(time: str) -> int:
    """Convert a time limit of sbatch to seconds; 0: no limit."""
    match = _TIME.fullmatch(time)
    if match is None:
        raise UserError(f"--time-limit {time}: expected minutes, hours:minutes:seconds or days-hours")
    days, *parts = [int(part) if part else 0 for part in match.groups()[:4]]
    if match[1]:
        hours, minutes, seconds = parts
    elif match[7]:
        hours, minutes, seconds = int(match[5]), int(match[6]), int(match[7])
    else:
        hours, minutes, seconds = 0, int(match[5]), int(match[6] or 0)
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


if __name__ == "__main__":
    sys.exit(main())
