"""Files of settings for --config, in TOML and YAML, and what --print-config writes.

tests/training/test_command.py has those in JSON."""

import pytest

from hvdgan.errors import UserError
from hvdgan.recipe.loading import known_recipes
from hvdgan.training.command import parse
from launching import ROOT

FORMS = {
    "run.toml": """
recipe = "tiny:Conditional"   # a comment
image-size = [16, 8]
learning_rate = 1e-3
widths = [5, 6]
flip = true
diff_augment = ["color", "cutout"]
conditions = ["energy"]
pipeline.threads = 3
""",
    "run.yaml": """
recipe: tiny:Conditional   # a comment
image-size: [16, 8]
learning_rate: 1e-3
widths: [5, 6]
flip: yes
diff_augment: [color, cutout]
conditions: [energy]
run_dir: null
pipeline:
  threads: 3
""",
}
FLAGS = (
    "--recipe tiny:Conditional --image-size 16,8 --learning-rate 1e-3 --widths 5,6 --flip --diff-augment color,cutout "
    "--conditions energy --pipeline.threads 3"
)


@pytest.mark.parametrize("name", FORMS)
def test_each_format_gives_what_the_flags_give_and_flags_win(tmp_path, name):
    path = tmp_path / name
    path.write_text(FORMS[name].replace("\n", "\r\n"), encoding="utf-8-sig", newline="")  # as editors on Windows do
    assert parse(["--config", str(path)]) == parse(FLAGS.split())
    path.write_text(FORMS[name])
    assert parse(["--config", str(path)]) == parse(FLAGS.split())
    changed = parse(["--config", str(path), "--no-flip", "--widths", "7", "--pipeline.threads=1"])
    assert (changed.config.flip, changed.options.widths, changed.config.pipeline.threads) == (False, (7,), 1)


@pytest.mark.parametrize("flags", [FLAGS, '--run-dir ä"b\\c --ema-half-life 1e4 --stages adversarial=3', ""])
def test_printed_settings_are_read_back_and_explained(tmp_path, capsys, flags):
    path = tmp_path / "run.toml"
    assert parse([*flags.split(), "--print-config"]) is None
    path.write_text(text := capsys.readouterr().out, encoding="utf-8")
    assert parse(["--config", str(path)]) == parse(flags.split())
    assert (
        "# images per step of all ranks together; the number of ranks must divide it\nglobal_batch_size = 64\n" in text
    )
    assert "\n# max_steps =\n" in text and "\npipeline.prefetch = 2\n" in text


def test_there_is_an_example_for_each_recipe(monkeypatch):
    recipes = {path: parse(["--config", str(path)]).config.recipe for path in (ROOT / "examples").glob("*.toml")}
    assert {path.stem: name for path, name in recipes.items()} == {name: name for name in known_recipes()}


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("c.json", "[1]", "expected settings by their names, found list"),
        ("c.json", '{"image_sise": 3}', r"image_sise.* from .*c\.json\. Did you mean .?--image-size"),
        ("c.json", '{"image_size": -3}', "image_size"),
        ("c.yaml", "a: [1", "cannot be read as YAML: .*line 1"),
        ("c.yaml", "!!python/object/apply:os.getcwd []", "cannot be read as YAML"),
        ("c.toml", "steps = ", "cannot be read as TOML: "),
        ("nothing.toml", None, r"nothing\.toml: cannot be read"),
    ],
)
def test_a_wrong_file_is_one_line_that_names_it_or_the_setting(tmp_path, name, content, complaint):
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=complaint) as caught:
        parse(["--config", str(path)])
    assert "\n" not in str(caught.value)
