"""A user's mistake is one line that names it and exit code 2, and nothing is written; one in a recipe has its place.
Modules: recipe.batch, recipe.contract, recipe.loading, recipe.outputs, recipe.recipe,
training.build, training.memory"""

import inspect
import re
import sys

import keras
import pytest
import tensorflow as tf

import wrong
from hvdgan.errors import UserError
from hvdgan.recipe import recipe_errors
from hvdgan.train import main
from hvdgan.training.command import check_flags, parse
from launching import launcher, run

FLAGS = "--image-size 8 --global-batch-size 4 --dry-run".split()
TINY = "--recipe tiny:Tiny --image-size 8 --global-batch-size 4 --steps 2".split()
FOOL = "stage adversarial, update fool: "


def line_of(name):
    """The number of the line of a class that is marked."""
    lines, first = inspect.getsourcelines(getattr(wrong, name))
    return next(first + number for number, line in enumerate(lines) if "# here" in line)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder, with an empty folder, a text and a module that cannot be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "good").mkdir()
    (tmp_path / "notes.txt").write_text("no data")
    (tmp_path / "broken_gan.py").write_text("class MyGAN(keras.Model)\n    pass\n")
    sys.modules.pop("broken_gan", None)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("NoPair", FOOL + "the loss returns float32 (); it must return a scalar, the mean over the batch, and a dict"),
        ("If", "tf.where or tf.cond for an if"),
        ("UnknownDraw", "the batch has no noise; it has arrays, augment, conditions, constants, domains"),
        ("Frozen", "stage joint: owns generator, which has no trainable variables; leave trainable = False out"),
        ("WrongArgument", "stages() fails: TypeError: Update.__init__() got an unexpected keyword argument 'own'"),
        ("Selective", "stage joint, update judge: only_if of the metrics loss, real fails: KeyError: 'reall'"),
        ("BlankImages", "sample() reads batch.images, which is blank for samples; set shows_data = True in the class"),
        ("PacksRows", "pack() has the name of a class attribute of recipes (pack = 1); rename it"),
        ("Even --steps 3", "Options fails: ValueError: steps is 3; it must be even"),
        (
            "HalfLayers",
            "network discriminator, layer dense computes in float16, unscaled; give --precision mixed_float16",
        ),
        ("Float8", "dense/inputs_scale, whose gradient is its next value, as in float8 training"),
        ("OfHorovod", "optimizers() gives a DistributedOptimizer for generator; leave it out"),
        (
            "LayerInLoss",
            FOOL + "the loss fails: ValueError: it makes weights, which nothing would train; make the layer",
        ),
        ("InNumPy", "generator; a tf.numpy_function has no gradient"),
        ("OfParts", "network whole/part: / divides the names of tensors in a checkpoint"),
        ("LateHead", "network discriminator makes two_heads/dense_1/kernel in training only; build it by"),
    ],
)
def test_a_mistake_is_one_line_with_its_place(tmp_path, monkeypatch, capsys, name, complaint):
    monkeypatch.chdir(tmp_path)
    name, *more = name.split()
    assert main(["--recipe", f"wrong:{name}", *FLAGS, *more]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"hvdgan: recipe {name} (wrong.py, line {line_of(name)}): "), error
    assert complaint in error and error.count("\n") == 1, error
    assert len(error) < 700 and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("--recipe broken_gan:MyGAN", "(broken_gan.py, line 1): its import fails: SyntaxError: expected"),
        ("--image-size 48 --recipe dcgan", "--image-size 48: DCGAN takes 32, 64, 128 or 256 pixels"),
        ("--run-dir notes.txt/run", "--run-dir notes.txt/run"),
        ("--resume good", "--resume good: expected auto, never, or a checkpoint such as runs/"),
        ("--recipe tiny:Required", "every field of its Options needs a default"),
        ("--recipe tiny:UnknownEma", "ema names nobody, and networks() returns generator, discriminator"),
        ("--recipe tiny:Mixing", "network discriminator draws numbers to shuffle samples, of"),
        ("--recipe tiny:Overdrawn", "draw() returns images, which every batch has"),
        ("--recipe wrong:Unseen", "it has no sample(), which must return images (N, H, W, C)"),
        ("--recipe wrong:Decaying", "update fool: it has a learning rate, and the optimizer of generator has a sched"),
        ("--recipe measured:Measured --best-metric eval/erorr", "--best-metric eval/erorr: the run has eval/"),
    ],
)
def test_one_line_exit_code_2_and_nothing_written(folder, capsys, arguments, complaint):
    before, given = sorted(folder.rglob("*")), arguments.split()
    defaults = [word for pair in zip(TINY[::2], TINY[1::2], strict=True) if pair[0] not in given for word in pair]
    assert main([*given, *defaults]) == 2
    error = capsys.readouterr().err
    assert error.startswith("hvdgan: ") and complaint in error and error.count("\n") == 1
    assert sorted(path for path in folder.rglob("*") if "__pycache__" not in str(path)) == before


def test_a_policy_that_the_file_of_a_recipe_sets_is_said_to_be_replaced(folder, capsys):
    text = "import keras\nfrom tiny import Tiny as Halved\nkeras.config.set_dtype_policy('mixed_float16')\n"
    (folder / "halved.py").write_text(text)
    for precision, lines in (("mixed_float16", 0), ("float32", 1)):
        sys.modules.pop("halved", None)
        keras.config.set_dtype_policy("float32")
        assert parse(["--recipe", "halved:Halved", "--precision", precision])
        said = capsys.readouterr().err
        assert said.count("policy to mixed_float16") == said.count("\n") == lines, said


def test_options_that_are_lists_take_commas():
    def options(words):
        check_flags(arguments := ["--recipe", "wrong:Lists", *words.split()])
        return parse(arguments).options

    expected = wrong.Lists.Options(sizes=(1, 2, 3), names=["a", "b"], pair=(3, 4))
    assert options("--sizes 1,2,3 --names a,b --pair 3,4") == expected
    assert options("--sizes 1 --sizes 2 --pair 3 4") == wrong.Lists.Options(sizes=(1, 2), pair=(3, 4))
    given = options("--maybe 1,2 --several 7,8")
    assert (given.maybe, list(given.several)) == ((1, 2), [7, 8])


def test_an_operation_that_fails_in_a_step_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["--recipe", "wrong:OutOfRange", *FLAGS[:-1], "--run-dir", "run"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    place = f"(wrong.py, line {line_of('OutOfRange')}): {FOOL}"
    assert error.startswith(f"hvdgan: recipe OutOfRange {place}InvalidArgumentError: ")
    assert "is not in [0, 3)" in error


@pytest.mark.long
def test_out_of_memory_is_one_line(tmp_path):
    words = ["--recipe", "wrong:Hungry", *FLAGS[:-1], "--report", "never", "--run-dir", "run"]
    done = run([sys.executable, "-m", "hvdgan.train", *words], tmp_path, forked=True)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("hvdgan: ")]
    assert re.fullmatch(
        r"hvdgan: rank 0 is out of memory at step 2, stage adversarial: no room for a tensor with shape"
        r"\[281474976710656\] and type float, for \S*; "
        r"try --accumulate 2, a smaller --global-batch-size or smaller networks",
        line,
    ), line
    assert "stopped: rank 0 is out of memory" in (tmp_path / "run" / "log.txt").read_text()


def test_all_ranks_end_with_the_line_of_one(tmp_path):
    """As on a host with another version of the file."""
    command = [*launcher(2), sys.executable, "-m", "hvdgan.train", "--recipe", "wrong:OnSome", *FLAGS]
    done = run(command, tmp_path, forked=True, WRONG_RANKS="1")
    assert done.returncode != 0
    place = f"recipe OnSome (wrong.py, line {line_of('OnSome')}): stage adversarial, update fool: the loss fails"
    # One of them at least: a launcher ends the others at once when the first rank has ended.
    said = [line.partition("hvdgan: ")[2] for line in done.stderr.splitlines() if "hvdgan: " in line]
    assert said and all("rank 1: " in line and place in line for line in said), done.stderr
    assert "Traceback" not in done.stderr.partition("hvdgan: ")[0] and "in hvdgan" not in done.stderr


@pytest.mark.parametrize(("ranks", "is_said"), [(1, False), (2, True)])
def test_a_number_of_samples_that_only_one_rank_has_is_explained_on_several(monkeypatch, ranks, is_said):
    monkeypatch.setattr(recipe_errors, "launched", lambda: ("mpirun", ranks, 0))
    with pytest.raises(UserError) as caught:
        recipe_errors.call(lambda: tf.function(lambda: tf.zeros(32) + tf.zeros(64))(), what="the loss")
    assert ("a rank has its slice of the batch" in str(caught.value)) is is_said
