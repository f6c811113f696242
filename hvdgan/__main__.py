"""The command hvdgan: `hvdgan train ...` is `python -m hvdgan.train ...`, and so are the others."""

from hvdgan.cli import start

start.begin(__name__)

import difflib
import runpy
import sys

from hvdgan import __version__
from hvdgan.cli.app import exit_code

COMMANDS = {
    "train": "train a GAN",
    "launch": "start a command as several ranks",
    "prepare": "pack samples into HDF5 files",
    "sample": "draw with a checkpoint",
    "complete": "fill holes in photographs",
    "translate": "translate pictures between domains",
    "export": "write a network for Keras",
    "inspect": "verify a checkpoint",
    "doctor": "check an installation",
    "bench": "measure a run's speed",
    "verify": "prove the promises for a GAN",
    "evaluate": "measure the networks of a run",
    "features": "get the network of FID",
    "report": "write a page about a run",
    "slurm": "write a Slurm job",
}


def main() -> int:
    """Hand over to the command that the first word names; returns its exit code, or 2 for the user's mistake."""
    name, *words = sys.argv[1:] or [""]
    if name in ("-h", "--help"):
        lines = (f"  hvdgan {each:10}{what}" for each, what in COMMANDS.items())
        end = "\nhvdgan COMMAND --help lists the flags of a command, hvdgan recipes the recipes."
        exit_code(lambda: print("usage: hvdgan COMMAND ...\n", *lines, end, sep="\n"))
    elif name == "--version":
        print(__version__)
    elif name == "recipes":
        from hvdgan.cli.recipe_source import list_of_recipes  # here, since the other commands may have no packages

        exit_code(lambda: print(list_of_recipes()))
    elif name not in COMMANDS:
        problem = f"{name}: no such command" if name else "no command"
        meant = difflib.get_close_matches(name, [*COMMANDS, "recipes"], 1)
        known = f"did you mean {meant[0]}?" if meant else f"expected one of {', '.join(COMMANDS)}"
        print(f"hvdgan: {problem}; {known}", file=sys.stderr)
        return 2
    else:
        sys.argv[1:] = words
        runpy.run_module(f"hvdgan.{name}", run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
