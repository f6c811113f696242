"""The examples, from outside the package."""

import json
import shutil
import sys

from PIL import Image

from launching import ROOT, run, train

SHORT = ["--stages", "warmup=2,both=3", "--log-every", "1", "--width", "16"]


def test_the_example_trains_on_two_ranks_from_its_own_folder(tmp_path):
    shutil.copy(ROOT / "examples" / "my_gan.py", tmp_path)
    arguments = ["--recipe", "my_gan:MyGAN", "--image-size", "16", *SHORT]
    train(tmp_path, *arguments, ranks=2)
    records = [json.loads(line) for line in (tmp_path / "runs/my_gan.MyGAN/metrics.jsonl").read_text().splitlines()]
    assert [record["stage"] for record in records] == ["warmup"] * 2 + ["both"] * 3
    assert ["fool/loss" in record for record in records] == [False] * 2 + [True] * 3
    config = json.loads((tmp_path / "runs/my_gan.MyGAN/config.json").read_text())
    assert (config["width"], config["warmup_steps"]) == (16, 100)


def test_the_example_with_classes_trains_and_hvdgan_sample_draws_its_classes_and_paths(tmp_path):
    shutil.copy(ROOT / "examples" / "my_conv_gan.py", tmp_path)
    short = "--image-size 8 --width 2 --max-steps 3 --log-every 1 --global-batch-size 8".split()
    train(tmp_path, "--recipe", "my_conv_gan:MyConvGAN", *short)
    path = tmp_path / "runs/my_conv_gan.MyConvGAN"
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert ["fool/loss" in record for record in records] == [False, False, True]
    assert all(record["judge/penalty"] > 0 for record in records)
    for words in ("--class 3", "--interpolate 1 2"):
        drawn = ["--samples", "4", "--out", f"{words.split()[0][2:]}.png"]
        done = run([sys.executable, "-m", "hvdgan.sample", str(path), *drawn, *words.split()], tmp_path, forked=True)
        assert done.returncode == 0, done.stderr


def test_the_example_with_pairs_trains_on_dicts_of_inputs_and_outputs(tmp_path):
    shutil.copy(ROOT / "examples" / "my_translator.py", tmp_path)
    short = "--image-size 8 --width 2 --max-steps 3 --log-every 1 --global-batch-size 8".split()
    train(tmp_path, "--recipe", "my_translator:MyTranslator", *short)
    path = tmp_path / "runs/my_translator.MyTranslator"
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    trained = [record for record in records if "fool/l1" in record]
    assert len(trained) == 3 and all({"judge/loss", "fool/likelihood"} <= record.keys() for record in trained)
    assert any("eval/psnr" in record for record in records)
    with Image.open(path / "samples" / "step-00000003.png") as grid:
        assert grid.size[0] > 3 * grid.size[1]  # input, image, expected error and wanted image side by side
