"""The command: python -m hvdgan.slurm, which writes the batch script of a training, and submits it if asked to."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from hvdgan.app import run_app
from hvdgan.errors import RunError, UserError
from hvdgan.exits import exit_code
from hvdgan.jobs import Job, script

_HELP = """Write the Slurm batch script of a training; what follows -- are the arguments of hvdgan.train.

python -m hvdgan.slurm --nodes 4 --gpus-per-node 4 --time 24:00:00 -- --recipe dcgan > job.sbatch"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the script, or submit it.

    Args:
        arguments: of the command line; None: the process's own.

    Returns:
        The exit code: 0 done, 1 sbatch refused it, 2 a mistake of the user's, 130 interrupted.
    """
    return exit_code(lambda: _main(list(sys.argv[1:] if arguments is None else arguments)))


def _main(arguments: list[str]) -> None:
    place = arguments.index("--") if "--" in arguments else len(arguments)
    own, of_trainer = arguments[:place], arguments[place + 1 :]

    def command(*, submit: bool = False, job: Annotated[Job, Parameter(name="*")] = Job()) -> None:  # noqa: B008
        """Write or submit.

        Parameters
        ----------
        submit:
            hand the script to sbatch instead of printing it
        """
        words = ["python", "-m", "hvdgan.slurm", *(word for word in own if word != "--submit"), *arguments[place:]]
        text = script(job, of_trainer, f"Written by: {shlex.join(words)}")
        if submit:
            _submit(text)
        else:
            print(text, end="")

    run_app(command, own, name="slurm", help_text=_HELP)


def _submit(text: str) -> None:
    home = Path(os.environ.get("HVDGAN_HOME", "."))
    if not (home / "launch" / "slurm.sh").is_file():
        raise UserError(
            f"--submit: no launch/slurm.sh in {home.resolve()}; do it in the checkout, or set HVDGAN_HOME to it"
        )
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        raise UserError("--submit: there is no sbatch on the PATH; without --submit the script is printed")
    done = subprocess.run([sbatch], input=text, capture_output=True, text=True)
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise RunError(f"--submit: sbatch has not taken it: {said}")
    print(done.stdout, end="")


if __name__ == "__main__":
    sys.exit(main())
