"""Mistakes in a user's recipe: one line with the recipe, the place in the file, the value, and what to write.

Modules: recipe.batch, recipe.results, recipe.loading, recipe.recipe, training.run.
"""

import dataclasses
import inspect
import json
import os
import sys

import pytest

import wrong
import wrong_losses
from hvdgan.train import main
from hvdgan.training.command import parse, parse_saved
from launching import EACH_CONTROLLER, launcher, run, train

FLAGS = "--image-size 8 --global-batch-size 4 --dry-run".split()
EAGER = """
import keras
import tensorflow as tf
from tiny import Tiny

WEIGHTS = tf.constant([0.25, 0.75])
FEATURES = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(3)])
FEATURES(tf.zeros((1, 8, 8, 1)))


class MyGAN(Tiny):
    def fool(self, nets, batch):
        loss, _ = super().fool(nets, batch)
        threads = tf.config.threading.get_intra_op_parallelism_threads()
        return loss * tf.reduce_sum(WEIGHTS), {"threads": threads}
"""
FOOL = "stage adversarial, update fool: "


def module_of(name):
    """The name of the module that holds a wrong recipe."""
    return (wrong_losses if hasattr(wrong_losses, name) else wrong).__name__


def line_of(name):
    """The number of the line of a class that is marked."""
    lines, first = inspect.getsourcelines(getattr(sys.modules[module_of(name)], name))
    return next(first + number for number, line in enumerate(lines) if "# here" in line)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("NoPair", FOOL + "the loss returns float32 (); it must return a scalar, the mean over the batch, and a dict"),
        ("Triple", FOOL + "the loss returns a tuple of 3; it must return a scalar"),
        ("NoReturn", FOOL + "the loss returns None; it must return a scalar"),
        ("NoLoss", FOOL + "the loss is None; it must be a scalar, the mean over the batch"),
        ("NoScalar", FOOL + "the loss has shape (4, 1); it must be a scalar"),
        ("WholeNumber", FOOL + "the loss does not depend on generator/dense"),
        ("TrainingGiven", FOOL + "the loss fails: TypeError: training=False cannot be given to generator"),
        ("UnknownNetwork", "there is no network critic; networks() returns generator, discriminator"),
        ("NetworkByKey", "call networks by attribute, as in nets.generator(x)"),
        (
            "Float",
            "TypeError: float() argument must be a string or a real number, not 'SymbolicTensor'; a step is traced",
        ),
        ("Numpy", "no attribute 'numpy'; a step is traced once"),
        ("NumpyMean", "a step is traced once, before its tensors have values; use tf operations"),
        ("If", "tf.where or tf.cond for an if"),
        ("NoScalarMetric", FOOL + "the metric fake is float32 (4, 1); it must be a scalar, as of tf.reduce_mean"),
        ("NoNumberMetric", FOOL + "the metric kind is 'hinge'; it must be a scalar"),
        ("MetricsList", FOOL + "the loss returns a list of 1 as its metrics; it must return"),
        ("NumberedMetrics", FOOL + "the loss returns a dict of 1 as its metrics; it must return"),
        ("UnknownName", FOOL + "the loss fails: NameError: name 'reduce_mean' is not defined"),
        (
            "UnknownDraw",
            "the batch has no noise; it has augment, conditions, constants, images, index, inputs, lab",
        ),
        ("Shapes", FOOL + "the loss fails: "),
        ("LayerShapes", FOOL + "the loss fails: "),
        ("Deep", FOOL + "the loss fails: ValueError: "),
        ("Compiled", FOOL + "the loss fails: ValueError: "),
        ("FewArguments", "takes 2 positional arguments but 3 were given; it must take (self, nets, batch)"),
        (
            "Untouched",
            FOOL + "the loss does not depend on generator/dense/kernel of generator, generator/dense/bias of",
        ),
        ("NetworksList", "networks() returns a list of 2; it must return a dict of built Keras models by name"),
        ("NoModel", "networks() gives generator as a list of 1; it must return a dict of built Keras models"),
        ("NotBuilt", "network generator is not built; call it on an example, or give it an Input"),
        ("BrokenNetwork", "networks() fails: ValueError: "),
        ("NoOptimizers", "it has no optimizers(), which must return a dict of an optimizer for each network"),
        ("MisspeltOptimizer", "optimizers() has none for discriminator in place of discriminater"),
        ("OneMoreOptimizer", "optimizers() has one for critic, and networks() returns generator, discriminator"),
        ("NamedOptimizer", "optimizers() gives 'adam' for generator; it must return"),
        ("SharedOptimizer", "optimizers() gives one optimizer to two networks; every network needs its own"),
        (
            "ScalesLosses",
            "optimizers() gives an optimizer with loss_scale_factor for generator; leave the scaling out: hv",
        ),
        ("Several", "optimizers() gives a MultiOptimizer for generator; give one optimizer, or split the network"),
        (
            "ScalesLossesByItself",
            "optimizers() gives a LossScaleOptimizer for generator; leave the scaling out: hvdgan sc",
        ),
        (
            "AveragesByItself",
            'an optimizer with use_ema for generator; leave it out and set ema = ("generator",) in the',
        ),
        (
            "Frozen",
            "stage joint, update fool: it owns generator, which has no trainable variables; leave trainable = F",
        ),
        ("Letters", "ema is 'generator'; it must be a tuple of names, as in (\"generator\",)"),
        ("ChangeableLetters", "may_change is 'steps'; it must be a tuple of names, as in (\"steps\",)"),
        ("ChangesNothing", "may_change names step, and Options has steps, norm, learning_rate"),
        ("OneStage", "stages() returns a Stage; it must return a list of Stage"),
        ("Updates", "stages() returns a tuple of 2, with an Update in it; it must return a list of Stage"),
        ("OneUpdate", "stage joint: updates is an Update; it must be a list of Update"),
        ("WrongArgument", "stages() fails: TypeError: Update.__init__() got an unexpected keyword argument 'own'"),
        ("OwnsLetters", "stage joint, update fool: owns is 'generator'; it must be a list of at least one"),
        ("OwnsModels", "stage joint, update fool: owns is a list of 1, with a Sequential in it; it must be a list"),
        ("OwnsUnknown", "stage joint, update fool: owns critic, and networks() returns discriminator, generator"),
        ("Called", "stages() fails: TypeError: Tiny.fool() missing 2 required positional arguments"),
        (
            "NoFunction",
            "stage joint, update fool: loss is 'hinge'; it must be a function of the networks and the batch",
        ),
        ("Never", "stage joint, update fool: every is 0; it must be from 1 to the stage's 3 steps"),
        ("Half", "stage joint, update fool: every is 1.5; it must be a whole number of steps"),
        (
            "KerasRate",
            "stage joint, update fool: learning_rate is a CosineDecay; it must be a number or a LearningRate",
        ),
        ("ZeroRate", "stage joint, update fool: the learning rate is 0.0; it must be above 0"),
        ("NoSteps", "stage joint: 0 steps; a stage needs at least 1, or leave it out"),
        ("FloatSteps", "stage joint: steps is 1000.0; it must be a whole number of at least 1"),
        ("Twins", "stage joint: update fool is named twice; every name must be there once"),
        ("UnknownPlateau", "stage joint: it ends on a plateau of fool/los, and its metrics are fool/loss, judge/loss"),
        ("Selective", "stage joint, update judge: only_if of the metrics loss, real fails: KeyError: 'reall'"),
        ("SelectsNumber", "stage joint, update judge: only_if returns float32 (); it gets the metrics loss, real, and"),
        ("DrawsList", "stage adversarial: draw() gives latents as 0.0; it must return a dict of tensors by name, (B, "),
        ("DrawsTwo", "stage adversarial: draw() gives latents as float32 (2, 8); it must return a dict"),
        ("DrawsTensor", "stage adversarial: draw() returns float32 (4, 8); it must return a dict"),
        ("DrawsNumpy", "stage adversarial: draw() gives latents as float64 (4, 8); it must return a dict"),
        ("DrawsShape", "stage adversarial: draw() fails: TypeError: "),
        ("SamplesUint8", "sample() returns uint8 (64, 8, 8, 1); it must return images (N, H, W, C) in [-1, 1]"),
        ("SamplesOne", "sample() returns float32 (8, 8, 1); it must return images (N, H, W, C) in [-1, 1]"),
        ("SamplesNothing", "sample() returns None; it must return images (N, H, W, C) in [-1, 1]"),
        ("BlankImages", "sample() reads batch.images, which is blank for samples; set shows_data = True in the class"),
        ("BlankInputs", "sample() reads batch.inputs, which is blank for samples; set shows_data = True in the class"),
        ("BlankImagesToGenerate --eval-samples 8", "generate() reads batch.images, which is blank for samples; set"),
        ("Evaluates", "evaluate() returns float32 (); it must return a dict of metrics by name"),
        ("EvaluatesText", "evaluate() returns name as 'x'; it must return a dict of metrics by name"),
        ("FewInitArguments", "takes 2 positional arguments but 3 were given; it must take (self, options, data)"),
        ("NoSuperInit", "__init__() does not call super().__init__(options, data)"),
        ("BrokenInit", "__init__() fails: TypeError: math.log2() takes exactly one argument (2 given)"),
        ("PlainOptions", "Options must be a frozen dataclass with a default for every field"),
        ("Thawed", "Options is not frozen; write @dataclasses.dataclass(frozen=True) above it"),
        ("Untyped", "Options.width has no type, and is no flag; write width: int = 64"),
        ("Even --steps 3", "Options fails: ValueError: steps is 3; it must be even"),
    ],
)
def test_a_mistake_is_one_line_with_its_place(tmp_path, monkeypatch, capsys, name, complaint):
    monkeypatch.chdir(tmp_path)
    name, *more = name.split()
    assert main(["--recipe", f"{module_of(name)}:{name}", *FLAGS, *more]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"hvdgan: recipe {name} ({module_of(name)}.py, line {line_of(name)}): "), error
    assert complaint in error and error.count("\n") == 1, error
    assert len(error) < 700 and not list(tmp_path.iterdir())


def test_a_class_is_named_beside_the_line_that_it_inherits(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["--recipe", "wrong:Inherited", *FLAGS]) == 2
    error = capsys.readouterr().err
    assert error.startswith("hvdgan: recipe Inherited (tiny.py, line ") and error.count("\n") == 1
    assert "stage adversarial, update judge: the loss fails: " in error


@pytest.mark.parametrize(
    ("text", "line", "complaint"),
    [
        (
            "import keras\n\nclass MyGAN(keras.Model)\n    pass\n",
            3,
            "SyntaxError: expected ':': class MyGAN(keras.Model)",
        ),
        ("class MyGAN:\n    pass\n  x = 3\n", 3, "IndentationError: unindent does not match"),
        ("import os\nimport no_such_library\n", 2, "ModuleNotFoundError: No module named 'no_such_library'"),
        ("from hvdgan.recipe.stages import Stages\n", 1, "ImportError: cannot import name 'Stages'"),
        (
            "import hvdgan.recipe\n\n\nclass MyGAN(hvdgan.recipe.Recipes):\n    pass\n",
            4,
            "AttributeError: module",
        ),
        ("import sys\nsys.exit(3)\n", 2, "SystemExit: 3"),
        (
            "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass Options:\n    sizes: list = []\n",
            2,
            "ValueError: mutable default <class 'list'> for field sizes is not allowed",
        ),
    ],
)
def test_a_file_that_cannot_be_imported_is_one_line(tmp_path, monkeypatch, capsys, text, line, complaint):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_gan.py").write_text(text)
    sys.modules.pop("my_gan", None)
    assert main(["--recipe", "my_gan:MyGAN", *FLAGS]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"hvdgan: --recipe my_gan:MyGAN (my_gan.py, line {line}): its import fails: {complaint}")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("wrong_losses:NoPairs", "NoPairs in wrong_losses is not a subclass of hvdgan.recipe.Recipe; the module is "),
        ("wrong:Instance", "Instance in wrong is not a subclass of hvdgan.recipe.Recipe"),
        ("wrong_losses.py:NoPair", "expected package.module:Attribute, as in wrong_losses:NoPair"),
        ("wrong_losses:NoPair.py", "expected one of calo3d, completion, dcgan"),
    ],
)
def test_a_wrong_name_is_one_line(capsys, name, complaint):
    assert main(["--recipe", name, *FLAGS]) == 2
    error = capsys.readouterr().err
    assert complaint in error and error.count("\n") == 1


def test_the_traceback_is_there_for_those_who_ask(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HVDGAN_TRACEBACK", "1")
    assert main(["--recipe", "wrong_losses:UnknownName", *FLAGS]) == 2
    error = capsys.readouterr().err
    assert "Traceback (most recent call last)" in error and "return reduce_mean(nets.generator" in error
    assert error.splitlines()[-1].startswith("hvdgan: recipe UnknownName (wrong_losses.py, line ")


def test_a_mistake_in_hvdgan_keeps_its_traceback(monkeypatch, capsys):
    from hvdgan.recipes.dcgan import DCGAN

    monkeypatch.setattr(DCGAN, "stages", lambda self: 1 / 0)
    assert main(["--recipe", "dcgan", "--nf", "2", "--global-batch-size", "4", "--dry-run"]) == 1
    error = capsys.readouterr().err
    assert "Traceback (most recent call last)" in error and "ZeroDivisionError" in error


def test_options_that_are_lists_take_commas():
    def options(words):
        return parse(["--recipe", "wrong:Lists", *words.split()]).options

    assert options("--sizes 1,2,3 --names a,b --pair 3,4") == wrong.Lists.Options(
        sizes=(1, 2, 3), names=["a", "b"], pair=(3, 4)
    )
    assert options("--sizes=4,5 --steps 2") == wrong.Lists.Options(sizes=(4, 5), steps=2)
    assert options("--sizes 1 --sizes 2 --pair 3 4") == wrong.Lists.Options(sizes=(1, 2), pair=(3, 4))


def test_options_that_are_lists_or_none_and_sequences_take_commas():
    def options(words):
        return parse(["--recipe", "wrong:Lists", *words.split()]).options

    given = options("--maybe 1,2 --perhaps=3,4 --both 5,6 --several 7,8")
    assert (given.maybe, given.perhaps, given.both, list(given.several)) == ((1, 2), [3, 4], (5, 6), [7, 8])
    given = options("--maybe 1 --several 2 --several 3")
    assert (given.maybe, given.perhaps, given.both, list(given.several)) == ((1,), None, None, [2, 3])


@pytest.mark.parametrize("more", [[], ["--accumulate", "2"]])
def test_draws_that_are_the_same_for_all_samples_are_constants_or_numbers(tmp_path, monkeypatch, more):
    monkeypatch.chdir(tmp_path)
    assert main(["--recipe", "wrong:Constants", *FLAGS, *more]) == 0


@pytest.mark.parametrize(("name", "options"), [("Thawed", {"steps": 5}), ("Untyped", {"steps": 5})])
def test_saved_options_that_could_be_no_flags_are_read(name, options):
    command = parse_saved({"recipe": f"wrong:{name}", **options}, "run")
    assert dataclasses.asdict(command.options) == options


def test_an_operation_that_fails_in_a_step_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert (
        main(["--recipe", "wrong:OutOfRange", "--image-size", "8", "--global-batch-size", "4", "--run-dir", "run"]) == 2
    )
    error = capsys.readouterr().err.splitlines()[-1]
    place = f"(wrong.py, line {line_of('OutOfRange')}): {FOOL}"
    assert error.startswith(f"hvdgan: recipe OutOfRange {place}InvalidArgumentError: ")
    assert "is not in [0, 3)" in error


@pytest.mark.parametrize("ranks_of", ["", "1"])
def test_all_ranks_end_with_the_line(tmp_path, ranks_of):
    """Also where one rank alone has made the mistake, as on a host with another version of the file."""
    command = [*launcher(2), sys.executable, "-m", "hvdgan.train", "--recipe", "wrong:OnSome", *FLAGS]
    done = run(command, tmp_path, WRONG_RANKS=ranks_of)
    assert done.returncode != 0
    place = f"recipe OnSome (wrong.py, line {line_of('OnSome')}): stage adversarial, update fool: the loss fails"
    said = [line.partition("hvdgan: ")[2] for line in done.stderr.splitlines() if "hvdgan: " in line]
    assert sorted(line[:6] for line in said) == ["rank 0", "rank 1"] and all(place in line for line in said), (
        done.stderr
    )
    assert "Traceback" not in done.stderr.partition("hvdgan: ")[0]
    assert "in hvdgan" not in done.stderr


def test_all_ranks_end_where_the_file_of_one_cannot_be_imported(tmp_path):
    (tmp_path / "my_gan.py").write_text(
        "import os\nif os.environ['HOROVOD_RANK'] == '1':\n    import no_such_library\nfrom tiny import Tiny\n"
    )
    command = [*launcher(2), sys.executable, "-m", "hvdgan.train", "--recipe", "my_gan:Tiny", *FLAGS]
    done = run(command, tmp_path)
    assert done.returncode != 0
    assert "rank 1: --recipe my_gan:Tiny (my_gan.py, line 3): its import fails: ModuleNotFoundError" in done.stderr


@pytest.mark.parametrize("controller", EACH_CONTROLLER)
def test_operations_that_run_when_a_file_is_imported_leave_each_rank_its_share(tmp_path, controller):
    """They fix TensorFlow's threads and devices, which a rank has claimed by then."""
    (tmp_path / "my_gan.py").write_text(EAGER)
    words = "--recipe my_gan:MyGAN --steps 2 --run-dir run".split()
    train(tmp_path, *words, *FLAGS[:-1], ranks=2, controller=controller)
    cores = max(1, len(os.sched_getaffinity(0)) // 2)
    record = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert record["fool/threads"] == cores  # the mean over the ranks
    assert (tmp_path / "run" / "checkpoints" / "step-00000002").is_dir()
