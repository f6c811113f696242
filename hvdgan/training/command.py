"""Reads the settings of hvdgan train from flags, a file of settings, and defaults. Its --help needs no TensorFlow."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

from cyclopts import Group, Parameter

from hvdgan.cli.app import app_of, run_app
from hvdgan.cli.recipe_source import options_in_source
from hvdgan.errors import UserError
from hvdgan.launching.launched import launched, warn_once
from hvdgan.settings.config import Config, to_json, without_replaced
from hvdgan.settings.data import ArrayConfig, TFRecordConfig
from hvdgan.settings.evaluation import EVALUATION
from hvdgan.settings.file import as_toml, read_settings
from hvdgan.settings.own_code import refuse_foreign_settings
from hvdgan.settings.types import Count, Positive, Words

if TYPE_CHECKING:
    from hvdgan.recipe.recipe import Recipe

_HELP = {"--help", "-h", "--help-all"}
_COMMAND = Group("Command", sort_key=10)
_SHORT = """Train a GAN, or resume its run, alone or under horovodrun, mpirun or srun.

  hvdgan train --data photos --image-size 64 --run-dir runs/photos
  hvdgan launch -np 4 train --config examples/stylegan2.toml

--help-all lists all flags; --recipe NAME --help has those of another recipe."""
_LONG = """Train a GAN, alone or under horovodrun, mpirun or srun.

Flags override the values of --config, which override the defaults. --no-NAME switches off what --NAME switches on."""
_BASICS = (
    *("recipe", "run_dir", "config", "data", "image_size", "fit", "global_batch_size", "precision"),
    *("flip", "diff_augment", "seed", "max_steps", "checkpoint_every", "resume", "eval_samples", "dry_run"),
)
_LENGTH = "the length of a run is --steps, in batches of --global-batch-size images"
_BATCH = "the images per step of all ranks together are --global-batch-size"
_INSTEAD = {
    "--batch": _BATCH,
    "--batch-size": _BATCH,
    "--epochs": _LENGTH,
    "--gpus": "the launcher starts a rank for each GPU, as in hvdgan launch -np 4 train",
    "--kimg": _LENGTH,
    "--lr": "the step size of the optimizers is --learning-rate, an option of most recipes",
    "--outdir": "the folder of a run is --run-dir",
    "--version": "hvdgan --version prints it",
}
"""answers to flags that other trainers have"""
_METRICS = {"fid50k_full": {"eval_samples": 50_000, "eval_real_samples": 0, "eval_features": "inception"}}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked for besides training, which is not saved in config.json."""

    dry_run: bool = False
    """print the networks, stages and ranks; write nothing"""
    as_if_ranks: Count | None = None
    """with --dry-run: also show what this number of ranks would do, and refuse what they could not"""
    allow: Literal["batch-dependent-loss"] | None = None
    """warning to switch off, of a loss that is no mean over samples"""
    print_config: bool = False
    """print all settings as TOML, for --config, and do nothing else"""
    expect_size: Count | None = None
    """number of ranks; refuse to start with any other"""
    time_budget: Positive | None = None
    """time after which the run is saved and ends with exit code 75, from the start of the process (minutes)"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resume:
    """Settings for the start of a run, which are not saved in config.json."""

    resume: str = "auto"
    """auto (resume the run in the folder), never (refuse a folder that holds a run), or the path of a checkpoint"""
    allow_changed: Words = ()
    """settings that may differ from the checkpoint's, comma-separated; at your own risk"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Elastic:
    """Settings of an elastic run, which are not saved in config.json."""

    commit_every: Count = 50
    """steps between two copies of the state in memory, from which an elastic run resumes when a rank is lost"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(Request):
    """The contents of a command line."""

    config: Config
    recipe: "type[Recipe]"
    options: Any
    resume: Resume
    elastic: Elastic


_OTHERS = [field.name for kind in (Request, Resume, Elastic) for field in dataclasses.fields(kind)]
_OTHERS += ["config", "metrics", "help", "help_all"]


def parse(arguments: Sequence[str]) -> Command | None:
    """Read a command line; or print the help or the settings, if it asks for that, and return None."""
    if _HELP & {*arguments}:
        answer(arguments)
        return None
    saved, source = _saved(arguments)
    command = _parse(arguments, without_replaced(saved, arguments), source, as_flags=True)
    if saved:
        refuse_foreign_settings(f"--config {source}", vars(command.config), arguments)
    if command.print_config:
        _print_settings(command)
        return None
    return command


def parse_saved(saved: dict[str, Any], source: str) -> Command:
    """Read the settings that a run has saved, as --config does; messages name their source."""
    try:
        return _parse((), saved, source, as_flags=False)
    except UserError as error:
        raise UserError(f"{source}: {error}") from error


def answer(arguments: Sequence[str]) -> bool:
    """Do what needs no TensorFlow, and return whether that is all: print the help, or refuse flags and missing data."""
    saved, _ = _saved(arguments)
    data, _, array = (_peek(arguments, "--data") or str(saved.get("data", Config.data))).partition(":")
    if _HELP & {*arguments}:
        _print_help(arguments, str(_peek(arguments, "--recipe") or saved.get("recipe", Config.recipe)), data, array)
        return True
    if launched()[1] > 1:  # ranks compare what each of them sees
        return False
    check_flags(arguments)
    is_path = not array and data not in ("digits", "synthetic") and not {*data} & {*"*?["}
    if is_path and not os.path.exists(data):
        from hvdgan.data.opening import EXPECTED

        raise UserError(f"--data {data}: no such file or folder; expected {EXPECTED}")
    return False


def check_flags(arguments: Sequence[str]) -> None:
    """Refuse flags and settings that hvdgan train would refuse, as far as that needs no TensorFlow."""
    saved, source = _saved(arguments)
    recipe = str(_peek(arguments, "--recipe") or saved.get("recipe", Config.recipe))
    if _HELP & {*arguments} or not (Options := options_in_source(recipe)):
        return
    # In which forms a list may be given depends on its type, which the imported recipe alone has.
    kinds = [get_args(field.type)[0] for field in dataclasses.fields(Options)]
    if not any(get_origin(kind) is tuple for kind in kinds):
        _checked(recipe, None, Options(), arguments, without_replaced(saved, arguments), source)


def _saved(arguments: Sequence[str]) -> tuple[dict[str, Any], str]:
    """The settings of --config and of the preset of --metrics, and the name of the file."""
    path = _peek(arguments, "--config")
    saved = {} if path is None else read_settings(Path(path), f"--config {path}")
    refuse_foreign_settings(f"--config {path}", saved, arguments)
    preset = _peek(arguments, "--metrics") or saved.get("metrics")
    return {**_METRICS.get(str(preset), {}), **saved}, str(path)


def _print_help(arguments: Sequence[str], recipe: str, data: str, array: str) -> None:
    if Options := options_in_source(recipe):
        default = Options()
    else:
        from hvdgan.recipe import recipe_errors
        from hvdgan.recipe.loading import load_recipe
        from hvdgan.recipe.options import default_options

        found = load_recipe(recipe)
        with recipe_errors.of(found):
            default = default_options(found, {*to_json(Config()), *_OTHERS}, as_flags=True)
    names = {*_BASICS, *(field.name for field in dataclasses.fields(default))}
    if "steps" not in names:
        names |= {"max_steps", "stages"}
    if ".tfrecord" in data:
        names |= {f"tfrecord_{field.name}" for field in dataclasses.fields(TFRecordConfig)}
    elif (array and data != "keras") or data.endswith((".npy", ".npz", ".h5", ".hdf5", ".nc", ".zarr")):
        names |= {field.name for field in dataclasses.fields(ArrayConfig)}
    everything = "--help-all" in arguments
    shown = None if everything else {f"--{name.replace('_', '-')}" for name in names}
    text = _LONG if everything else _SHORT
    run_app(_flags(recipe, None, default), ["--help"], name="train", help_text=text, shown=shown)


def _parse(arguments: Sequence[str], saved: dict[str, Any], source: str, *, as_flags: bool) -> Command:
    import keras

    from hvdgan.recipe import recipe_errors
    from hvdgan.recipe.loading import load_recipe
    from hvdgan.recipe.options import default_options, without_commas
    from hvdgan.training.train_state import seed_generators

    name, seed = (
        saved.get(key, default) if (given := _peek(arguments, f"--{key}")) is None else given
        for key, default in (("recipe", Config.recipe), ("seed", Config.seed))
    )
    # Other values of the flag are refused below.
    seed_generators(int(seed) if str(seed).isdecimal() else Config.seed, "import")
    before = keras.config.dtype_policy().name
    recipe = load_recipe(str(name))
    policy = keras.config.dtype_policy().name
    with recipe_errors.of(recipe):
        default = default_options(recipe, {*to_json(Config()), *_OTHERS}, as_flags=as_flags)
        words = without_commas(arguments, recipe.Options)
    with recipe_errors.of(recipe):  # its Options may refuse a value
        command: Command = recipe_errors.call(
            lambda: _checked(str(name), recipe, default, words, saved, source), what="Options"
        )
    if policy not in (before, precision := command.config.precision):
        warn_once(f"warning: {name}: its file sets Keras' policy to {policy}, which --precision {precision} replaces")
    return command


def _checked(
    name: str, recipe: Any, default: Any, words: Sequence[str], saved: Mapping[str, Any], source: str
) -> Command:
    """Check all flags and settings, and return them as a command."""
    words = _with_other_data(words)
    if not hasattr(default, "steps"):
        words = ["--max-steps" + word[7:] if word.partition("=")[0] == "--steps" else word for word in words]
        saved = {"max_steps" if key == "steps" else key: value for key, value in saved.items()}
    flags, saved = _flags(name, recipe, default), dict(saved)
    command: Command = run_app(
        flags, words, name="train", help_text=_LONG, saved=saved, source=source, instead=_INSTEAD
    )
    return command


def _with_other_data(words: Sequence[str]) -> list[str]:
    """The words with one --other-data for the values of --data after the first, if it is repeated."""
    kept, given, waiting = list[str](), list[str](), False
    for word in words:
        if waiting or word.startswith("--data="):
            given.append(word.removeprefix("--data="))
            waiting = False
        elif word == "--data":
            waiting = True
        else:
            kept.append(word)
    kept += ["--data"] * waiting  # without a value, which is refused
    first, others = given[:1], given[1:]
    return [*(f"--data={each}" for each in first), *(["--other-data", ",".join(others)] if others else []), *kept]


def _print_settings(command: Command) -> None:
    app = app_of(_flags("", command.recipe, command.options), name="train", help_text="")
    found = app.assemble_argument_collection(parse_docstring=True)
    comments = {name: each.parameter.help or "" for each in found for name in each.names}
    if launched()[2] == 0:
        print(as_toml(to_json(command.config, command.options), comments), end="")


def _flags(name: str, recipe: Any, default: Any) -> Callable[..., Command]:
    """The function whose parameters are the flags, those of a recipe's Options included."""
    Options: Any = type(default)

    def command(
        *,
        config_file: Annotated[Path | None, Parameter(name="--config", group=_COMMAND)] = None,
        resume: Annotated[Resume, Parameter(name="*", group=Group("Resume", sort_key=9))] = Resume(),
        request: Annotated[Request, Parameter(name="*", group=_COMMAND)] = Request(),
        metrics: Annotated[Literal["fid50k_full"] | None, EVALUATION] = None,
        elastic: Annotated[Elastic, Parameter(name="*", group=Group("Elastic", sort_key=11))] = Elastic(),
        config: Annotated[Config, Parameter(name="*")] = Config(),  # noqa: B008
        options: Annotated[Options, Parameter(name="*", group=Group(f"Recipe {name}", sort_key=2))] = default,
    ) -> Command:
        """Train.

        Parameters
        ----------
        config_file:
            settings (.toml, .yaml, .json); flags override them
        metrics:
            fid50k_full: FID of 50,000 samples to all real ones
        """
        if request.as_if_ranks is not None and not request.dry_run:
            raise UserError(f"--as-if-ranks {request.as_if_ranks}: is for --dry-run; add it")
        others = {"resume": resume, "elastic": elastic, **vars(request)}
        others["dry_run"] |= config.init_map == "print"
        return Command(config=config, recipe=recipe, options=options, **others)

    return command


def _peek(arguments: Sequence[str], flag: str) -> str | None:
    """The value of a flag that is read before the others, because they depend on it."""
    for position, argument in enumerate(arguments):
        if argument == flag and position + 1 < len(arguments):
            return arguments[position + 1]
        if argument.startswith(f"{flag}="):
            return argument.partition("=")[2]
    return None
