"""Mistakes in a user's recipe: one line with the recipe, the place in the file, the value, and what to write.

Modules: recipe.batch, recipe.results, recipe.loading, recipe.recipe, training.run.
"""

import inspect
import sys

import pytest

import wrong
import wrong_losses
from hvdgan.train import main
from hvdgan.training.command import parse
from launching import launcher, run

FLAGS = "--image-size 8 --global-batch-size 4 --dry-run".split()
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
        ("If", "tf.where or tf.cond for an if"),
        (
            "UnknownDraw",
            "the batch has no noise; it has augment, conditions, constants, domains, images, index",
        ),
        (
            "Frozen",
            "stage joint: owns generator, which has no trainable variables; leave trainable = False out",
        ),
        ("WrongArgument", "stages() fails: TypeError: Update.__init__() got an unexpected keyword argument 'own'"),
        ("Selective", "stage joint, update judge: only_if of the metrics loss, real fails: KeyError: 'reall'"),
        ("BlankImages", "sample() reads batch.images, which is blank for samples; set shows_data = True in the class"),
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


def test_a_file_that_cannot_be_imported_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_gan.py").write_text("class MyGAN(keras.Model)\n    pass\n")
    sys.modules.pop("my_gan", None)
    assert main(["--recipe", "my_gan:MyGAN", *FLAGS]) == 2
    error = capsys.readouterr().err
    assert error.startswith(
        "hvdgan: --recipe my_gan:MyGAN (my_gan.py, line 1): its import fails: SyntaxError: expected"
    )


def test_options_that_are_lists_take_commas():
    def options(words):
        return parse(["--recipe", "wrong:Lists", *words.split()]).options

    assert options("--sizes 1,2,3 --names a,b --pair 3,4") == wrong.Lists.Options(
        sizes=(1, 2, 3), names=["a", "b"], pair=(3, 4)
    )
    assert options("--sizes 1 --sizes 2 --pair 3 4") == wrong.Lists.Options(sizes=(1, 2), pair=(3, 4))
    given = options("--maybe 1,2 --perhaps=3,4 --both 5,6 --several 7,8")
    assert (given.maybe, given.perhaps, given.both, list(given.several)) == ((1, 2), [3, 4], (5, 6), [7, 8])


def test_an_operation_that_fails_in_a_step_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["--recipe", "wrong:OutOfRange", *FLAGS[:-1], "--run-dir", "run"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    place = f"(wrong.py, line {line_of('OutOfRange')}): {FOOL}"
    assert error.startswith(f"hvdgan: recipe OutOfRange {place}InvalidArgumentError: ")
    assert "is not in [0, 3)" in error


def test_all_ranks_end_with_the_line_of_one(tmp_path):
    """As on a host with another version of the file."""
    command = [*launcher(2), sys.executable, "-m", "hvdgan.train", "--recipe", "wrong:OnSome", *FLAGS]
    done = run(command, tmp_path, WRONG_RANKS="1")
    assert done.returncode != 0
    place = f"recipe OnSome (wrong.py, line {line_of('OnSome')}): stage adversarial, update fool: the loss fails"
    said = [line.partition("hvdgan: ")[2] for line in done.stderr.splitlines() if "hvdgan: " in line]
    assert sorted(line[:6] for line in said) == ["rank 0", "rank 1"] and all(place in line for line in said), (
        done.stderr
    )
    assert "Traceback" not in done.stderr.partition("hvdgan: ")[0]
    assert "in hvdgan" not in done.stderr
