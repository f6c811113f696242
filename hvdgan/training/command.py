"""Reads the settings of hvdgan.train from flags, a saved config.json, and defaults."""

import dataclasses
import inspect
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from cyclopts import Group, Parameter

from hvdgan.cli.app import run_app
from hvdgan.cli.average_config import without_replaced
from hvdgan.cli.config import Config
from hvdgan.cli.errors import UserError
from hvdgan.cli.types import Count, Positive, Words
from hvdgan.recipe.loading import load_recipe
from hvdgan.recipe.mistakes import Mistake, attribute, call, described, of
from hvdgan.recipe.recipe import NoOptions, Recipe
from hvdgan.training.state import seed_generators

_COMMAND = Parameter(group=Group("Command", sort_key=0))
_HELP = """Train a GAN, alone or under horovodrun, mpirun or srun.

Flags override the values of --config, which override the defaults."""


def to_json(config: Config, options: Any) -> dict[str, Any]:
    """Make one flat object of all settings, by their names on the command line."""
    values: dict[str, Any] = {}
    for name, value in dataclasses.asdict(config).items():
        if name == "tfrecord":
            values |= {f"tfrecord_{key}": each for key, each in value.items()}
        else:
            values |= value if name in ("arrays", "evaluation") else {name: value}
    return json.loads(json.dumps({**values, **dataclasses.asdict(options)}, default=str))


def read_json(path: Path, named: str = "") -> dict[str, Any]:
    """Read a saved config.json."""
    named = named or str(path)
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise UserError(f"{named}: cannot be read as JSON: {error}") from error
    if not isinstance(values, dict):
        raise UserError(f"{named}: expected a JSON object of settings, found {type(values).__name__}")
    if not isinstance(values.get("pipeline", {}), dict):
        raise UserError(f"{named}: pipeline is {values['pipeline']!r}; expected a JSON object of its settings")
    return values


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resume:
    """Settings for the start of a run, which are not saved in config.json."""

    resume: str = "auto"
    """auto (resume the run in the folder), never (refuse a folder that holds a run), or the path of a checkpoint"""
    allow_changed: Words = ()
    """settings that may differ from the checkpoint's, comma-separated; at your own risk"""
    init_from: Path | None = None
    """run folder or checkpoint whose networks a new run starts with; ignored when a run is resumed"""
    init_networks: Words = ()
    """names of the networks to take from --init-from, comma-separated; default: all that both have"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Elastic:
    """Settings of an elastic run, which are not saved in config.json."""

    commit_every: Count = 50
    """steps between two copies of the state in memory, from which an elastic run resumes when a rank is lost"""


@dataclasses.dataclass(frozen=True)
class Command:
    """The contents of a command line."""

    config: Config
    recipe: type[Recipe]
    options: Any
    resume: Resume
    dry_run: bool
    expect_size: int | None
    time_budget: float | None
    elastic: Elastic


def parse(arguments: Sequence[str]) -> Command | None:
    """Read a command line; or print the help, if it asks for that, and return None.

    Args:
        arguments: words of the command line, without the program's name.

    Raises:
        UserError: a flag or value is not possible; one line names both.
    """
    config_path = _peek(arguments, "--config")
    saved = {} if config_path is None else read_json(Path(config_path), f"--config {config_path}")
    return _parse(arguments, without_replaced(saved, arguments), str(config_path), _check_flags)


def parse_saved(saved: dict[str, Any], source: str) -> Command:
    """Read the settings that a run has saved, as --config does.

    Args:
        saved: contents of config.json.
        source: file that it was read from, for error messages.

    Raises:
        UserError: the recipe cannot be found, or a value is not possible.
    """
    try:
        command = _parse((), saved, source, _check_options)
    except UserError as error:
        raise UserError(f"{source}: {error}") from error
    assert command is not None  # nobody asked for the help
    return command


def _parse(
    arguments: Sequence[str], saved: dict[str, Any], source: str, check: Callable[[type[Recipe]], None]
) -> Command | None:
    name, seed = (
        saved.get(key, default) if (given := _peek(arguments, f"--{key}")) is None else given
        for key, default in (("recipe", Config.recipe), ("seed", Config.seed))
    )
    # Other values of the flag are refused below.
    seed_generators(int(seed) if str(seed).isdecimal() else Config.seed, "import")
    recipe = load_recipe(str(name))
    Options: Any = recipe.Options
    with of(recipe):
        check(recipe)
        default = call(Options, what="Options", wanted="every field of its Options needs a default")
        words = _without_commas(arguments, Options)

    def command(
        *,
        config_file: Annotated[Path | None, Parameter(name="--config"), _COMMAND] = None,
        resume: Annotated[Resume, Parameter(name="*", group=Group("Resume", sort_key=1))] = Resume(),
        dry_run: Annotated[bool, _COMMAND] = False,
        expect_size: Annotated[Count | None, _COMMAND] = None,
        time_budget: Annotated[Positive | None, _COMMAND] = None,
        elastic: Annotated[Elastic, Parameter(name="*", group=Group("Elastic", sort_key=8))] = Elastic(),
        config: Annotated[Config, Parameter(name="*")] = Config(),  # noqa: B008
        options: Annotated[Options, Parameter(name="*", group=Group(f"Recipe {name}", sort_key=6))] = default,
    ) -> Command:
        """Train.

        Parameters
        ----------
        config_file:
            saved config.json with settings; other flags override it
        dry_run:
            print the settings, networks and stages, and write nothing
        expect_size:
            number of ranks; refuse to start with any other
        time_budget:
            time from the start of the process until the run is saved and ends with exit code 75 (minutes)
        """
        return Command(config, recipe, options, resume, dry_run, expect_size, time_budget, elastic)

    with of(recipe):  # its Options may refuse a value
        return call(
            lambda: run_app(command, words, name="train", help_text=_HELP, saved=saved, source=source), what="Options"
        )


def _check_options(recipe: type[Recipe]) -> None:
    """Refuse Options that cannot be settings."""
    Options, at = recipe.Options, attribute(recipe, "Options")
    if not (isinstance(Options, type) and dataclasses.is_dataclass(Options)):
        raise Mistake(
            f"Options is {described(Options)}; Options must be a frozen dataclass with a default for every field", at
        )
    taken = {field.name for kind in (Resume, Elastic) for field in dataclasses.fields(kind)}
    taken |= {*to_json(Config(), NoOptions()), "config", "dry_run", "expect_size", "time_budget"}
    if twice := taken & {field.name for field in dataclasses.fields(recipe.Options)}:
        raise Mistake(f"the option {', '.join(sorted(twice))} is also a setting of hvdgan; rename it", Options)


def _check_flags(recipe: type[Recipe]) -> None:
    """Refuse Options that cannot be flags as they are meant. The saved options of an older run need not be flags."""
    _check_options(recipe)
    Options: Any = recipe.Options
    if not Options.__dataclass_params__.frozen:
        raise Mistake("Options is not frozen; write @dataclasses.dataclass(frozen=True) above it", Options)
    for kind in Options.__mro__:
        for name, value in vars(kind).items():
            typed = name in inspect.get_annotations(kind) or name.startswith("_")
            if not typed and isinstance(value, int | float | str | tuple):
                raise Mistake(
                    f"Options.{name} has no type, and is no flag; write {name}: {type(value).__name__} = {value!r}",
                    attribute(kind, name),
                )


def _without_commas(arguments: Sequence[str], Options: type) -> list[str]:
    """Split the lists of a recipe in the words of a command line, which are given as 1,2,3, as cyclopts wants them.

    A list becomes its flag before each value; a tuple of a fixed length becomes its flag before all values.
    """
    hints = call(partial(get_type_hints, Options, include_extras=True), what="Options")
    lists = {name: kind for name, hint in hints.items() if (kind := _list_type(hint)) is not None}
    words: list[str] = []
    waiting = None  # the type of the list whose flag was the last word
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        hint = lists.get(flag.removeprefix("--").replace("-", "_")) if flag.startswith("--") else None
        if waiting and not argument.startswith("--"):
            words[-1:] = _spread(words[-1], argument, waiting)
        else:
            words += _spread(flag, value, hint) if hint and equals else [argument]
        waiting = None if equals else hint
    return words


def _list_type(hint: Any) -> Any:
    """The type of an option that is a list, or a list or None; None if the option is no list."""
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    if get_origin(hint) in (Union, UnionType) and len(kinds) == 1:
        hint = kinds[0]
    return hint if get_origin(hint) in (tuple, list, Sequence) else None


def _spread(flag: str, value: str, hint: Any) -> list[str]:
    values = [part.strip() for part in value.split(",")]
    variadic = get_origin(hint) is not tuple or get_args(hint)[1:] == (Ellipsis,)
    return [word for each in values for word in (flag, each)] if variadic else [flag, *values]


def _peek(arguments: Sequence[str], flag: str) -> str | None:
    """The value of a flag that is read before the others, because they depend on it."""
    for position, argument in enumerate(arguments):
        if argument == flag and position + 1 < len(arguments):
            return arguments[position + 1]
        if argument.startswith(f"{flag}="):
            return argument.partition("=")[2]
    return None
