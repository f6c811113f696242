"""Command lines: that of hvdgan.train, every setting by name, from flags, a saved config.json, and defaults."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from hvdgan.app import run_app
from hvdgan.config import Config, Count, Elastic, Positive, Resume, read_json
from hvdgan.errors import UserError
from hvdgan.recipe import Recipe, load_recipe

_COMMAND = Parameter(group=Group("Command", sort_key=0))
_HELP = """Train a GAN, alone or under horovodrun, mpirun or srun.

Flags override the values of --config, which override the defaults."""


@dataclasses.dataclass(frozen=True)
class Command:
    """What the command line asks for."""

    config: Config
    recipe: type[Recipe]
    options: Any
    resume: Resume
    dry_run: bool
    expect_size: int | None
    time_budget: float | None
    elastic: Elastic


def parse(arguments: Sequence[str]) -> Command | None:
    """Read a command line; print the help and return None if that is what it asks for.

    Args:
        arguments: without the program's name.

    Raises:
        UserError: a flag or value that cannot be; one line that names both.
    """
    config_path = _peek(arguments, "--config")
    saved = {} if config_path is None else read_json(Path(config_path))
    return _parse(arguments, saved, str(config_path))


def parse_saved(saved: dict[str, Any], source: str) -> Command:
    """Read the settings that a run has saved, as --config does.

    Args:
        saved: what config.json holds.
        source: where it is from, for error messages.

    Raises:
        UserError: its recipe is not to be found, or a value cannot be.
    """
    try:
        command = _parse((), saved, source)
    except UserError as error:
        raise UserError(f"{source}: {error}") from error
    assert command is not None  # nobody asked for the help
    return command


def _parse(arguments: Sequence[str], saved: dict[str, Any], source: str) -> Command | None:
    given = _peek(arguments, "--recipe")
    name = saved.get("recipe", Config.recipe) if given is None else given
    recipe = load_recipe(str(name))
    _check_names(str(name), recipe)
    Options: Any = recipe.Options
    try:
        default = Options()
    except TypeError as error:
        raise UserError(f"--recipe {name}: every field of its Options needs a default: {error}") from error

    def command(
        *,
        config_file: Annotated[Path | None, Parameter(name="--config"), _COMMAND] = None,
        resume: Annotated[Resume, Parameter(name="*", group=Group("Resume", sort_key=1))] = Resume(),  # noqa: B008
        dry_run: Annotated[bool, _COMMAND] = False,
        expect_size: Annotated[Count | None, _COMMAND] = None,
        time_budget: Annotated[Positive | None, _COMMAND] = None,
        elastic: Annotated[Elastic, Parameter(name="*", group=Group("Elastic", sort_key=7))] = Elastic(),  # noqa: B008
        config: Annotated[Config, Parameter(name="*")] = Config(),  # noqa: B008
        options: Annotated[Options, Parameter(name="*", group=Group(f"Recipe {name}", sort_key=5))] = default,
    ) -> Command:
        """Train.

        Parameters
        ----------
        config_file:
            a saved config.json to take settings from; other flags override it
        dry_run:
            print the settings, networks and stages, and write nothing
        expect_size:
            refuse to start with another number of ranks
        time_budget:
            minutes after which to save and end with exit code 75, as after SIGTERM or where RUN_DIR/stop is found
        """
        return Command(config, recipe, options, resume, dry_run, expect_size, time_budget, elastic)

    return run_app(command, arguments, name="train", help_text=_HELP, saved=saved, source=source)


def _check_names(name: str, recipe: type[Recipe]) -> None:
    if not dataclasses.is_dataclass(recipe.Options):
        raise UserError(f"--recipe {name}: Options must be a frozen dataclass with a default for every field")
    taken = {field.name for kind in (Config, Resume, Elastic) for field in dataclasses.fields(kind)}
    taken |= {"config", "dry_run", "expect_size", "time_budget"}
    if twice := taken & {field.name for field in dataclasses.fields(recipe.Options)}:
        raise UserError(
            f"--recipe {name}: the option {', '.join(sorted(twice))} is also a setting of hvdgan; rename it"
        )


def _peek(arguments: Sequence[str], flag: str) -> str | None:
    """The value of a flag that decides how the others are read."""
    for position, argument in enumerate(arguments):
        if argument == flag and position + 1 < len(arguments):
            return arguments[position + 1]
        if argument.startswith(f"{flag}="):
            return argument.partition("=")[2]
    return None
