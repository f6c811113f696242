"""Comparing generated with real samples: what moves the distances, what is kept, and what is refused.

Modules: evaluation.comparison, evaluation.distances, evaluation.of_run,
evaluation.real_statistics, evaluation.tally.
"""

import math
import os
import sys
import time

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from building import tiny_run
from hvdgan.cli.data_config import ArrayConfig
from hvdgan.cli.errors import RunError, UserError
from hvdgan.data import Samples
from hvdgan.data.store import Store
from hvdgan.distributed.ranks import Ranks
from hvdgan.evaluation import tally
from hvdgan.evaluation.comparison import Comparison
from hvdgan.evaluation.frechet import frechet_distance
from hvdgan.evaluation.moments import Moments
from hvdgan.evaluation.of_run import measure_for
from hvdgan.evaluation.real_statistics import StatisticsCache
from hvdgan.evaluation.sets import RealSet, SampleBatch
from hvdgan.evaluation.tally import Plan, Tally, shortened
from hvdgan.recipe import DataSpec
from hvdgan.values.sample_values import SampleValues
from hvdgan.values.value_map import parse
from tiny import Conditional, Tiny

POOLED = "pooled:pooled"
ALONE = Ranks()


def ignore(line):
    """Drop a line of the log."""


def compared(run, say=ignore):
    return run.comparison(say)


def comparing(**settings):
    return tiny_run(**{"eval_samples": 300, "eval_features": POOLED, **settings})


class Changed(Store):
    """Pictures of another store, changed."""

    def __init__(self, store, change):
        super().__init__(store.name, store.shape, store.dtype)
        self.store, self.change = store, change

    def read(self, indices):
        return self.change(self.store.read(indices))


def part(source: Samples, indices, change=lambda pictures: pictures) -> Samples:
    """Some samples, changed."""
    return source.chosen(np.asarray(indices)).replace(images=Changed(source.images, change))


def distances_of(source, run, say=ignore):
    """The distances of a source's samples from the first half of the digits."""
    half = part(run.source, np.arange(0, len(run.source), 2))
    both = [RealSet(each, run.recipe.data, count=10**6, batch_size=16, threads=2) for each in (source, half)]
    nets = run.state.sampling_nets
    measure = measure_for(run.config.evaluation, run.recipe, nets, run.recipe.data, both, batch_size=16)
    return Comparison(both[0], both[1], measure, StatisticsCache(None, None), ALONE)(say)


def blurred(pictures):
    wide = np.pad(pictures.astype(np.float32), ((0, 0), (1, 1), (1, 1), (0, 0)), "edge")
    return np.mean([wide[:, i : i + 8, j : j + 8] for i in range(3) for j in range(3)], axis=0).astype(np.uint8)


@pytest.mark.long
def test_the_distances_rise_with_what_makes_samples_worse():
    run = comparing()
    rest = np.arange(1, len(run.source), 2)
    floor = distances_of(part(run.source, rest), run)
    few = rest[np.isin(run.source.labels[rest], [0, 1, 2, 3, 4])]
    worse = {
        "half of the classes": distances_of(part(run.source, few), run),
        "blurred": distances_of(part(run.source, rest, blurred), run),
        "one image": distances_of(part(run.source, np.full(len(rest), 7)), run),
    }
    for what, found in worse.items():
        for name in ("frechet", "kid", "sliced_wasserstein"):
            assert found[f"eval/{name}"] > 3 * abs(floor[f"eval/{name}"]), (what, name)
    assert worse["one image"]["eval/recall"] < 0.01 and worse["one image"]["eval/coverage"] < 0.05
    assert worse["half of the classes"]["eval/recall"] < 0.8 * floor["eval/recall"]
    assert worse["half of the classes"]["eval/inception_score"] < floor["eval/inception_score"]
    assert worse["blurred"]["eval/spectrum"] > 5 * floor["eval/spectrum"]
    assert worse["blurred"]["eval/histogram"] > 5 * floor["eval/histogram"]
    assert floor["eval/precision"] > 0.8 and floor["eval/coverage"] > 0.8


def test_the_same_samples_have_no_distance():
    run = comparing()
    half = part(run.source, np.arange(0, len(run.source), 2))
    found = distances_of(half, run)
    for name in ("frechet", "sliced_wasserstein", "histogram", "spectrum"):
        assert found[f"eval/{name}"] == pytest.approx(0, abs=1e-9)
    assert found["eval/precision"] == found["eval/recall"] == found["eval/coverage"] == 1


@pytest.mark.parametrize("features", [POOLED, "none"])
def test_more_samples_than_are_kept_are_summed(monkeypatch, features):
    """Nearest neighbours and projections are those of the first samples, the other distances those of all."""
    run = comparing(eval_features=features)
    everything = compared(run)
    monkeypatch.setattr(tally, "KEPT", 40)  # some batches of 16 are kept whole, one in part, others not at all
    run = comparing(eval_features=features)
    some = compared(run)
    counts = ("samples", "real_samples", "kept_samples", "kept_real_samples")
    assert [run.comparison.facts()[name] for name in counts] == [300, 300, 40, 40]
    for name in ("histogram", "spectrum", *(["frechet", "inception_score"] if features == POOLED else [])):
        assert some[f"eval/{name}"] == pytest.approx(everything[f"eval/{name}"], rel=1e-12)
    assert some["eval/sliced_wasserstein"] != everything["eval/sliced_wasserstein"]


def test_the_names_are_known_before_the_first_evaluation():
    for settings in ({}, {"eval_features": "none"}):
        run = comparing(**settings)
        assert set(compared(run)) == run.comparison.names
    run = tiny_run(Conditional, eval_samples=300, eval_features=POOLED)
    assert set(compared(run)) == run.comparison.names > {"eval/intra_frechet", "eval/intra_sliced_wasserstein"}


def test_a_class_that_is_never_drawn_leaves_the_distance_within_classes_undefined():
    class Never(Conditional):
        def draw(self, random):
            drawn = super().draw(random)
            return {**drawn, "classes": tf.minimum(drawn["classes"], 8)}

    lines = []
    found = compared(tiny_run(Never, eval_samples=200, eval_features=POOLED), lines.append)
    assert math.isnan(found["eval/intra_frechet"]) and math.isnan(found["eval/intra_sliced_wasserstein"])
    assert math.isfinite(found["eval/frechet"])
    run = tiny_run(Never, eval_samples=200)
    assert math.isnan(compared(run, lines.append)["eval/intra_sliced_wasserstein"])
    compared(run, lines.append)  # the line is logged once
    assert sum("none of the first 200 samples is of class 9" in line for line in lines) == 2


def test_the_distance_within_classes_is_the_mean_of_those_of_each_class():
    run = comparing()
    halves = [np.arange(start, len(run.source), 2) for start in (1, 0)]
    pictures = run.source.fetch_batch(np.arange(len(run.source))) / 127.5 - 1
    blocks = pictures.reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(-1, 16)
    each = []
    for label in range(10):
        some, others = (blocks[half][run.source.labels[half] == label] for half in halves)
        moments = some.mean(0), np.cov(some, rowvar=False), others.mean(0), np.cov(others, rowvar=False)
        each.append(frechet_distance(*moments))
    found = distances_of(part(run.source, halves[0]), run)
    assert found["eval/intra_frechet"] == pytest.approx(np.mean(each), rel=1e-4) != found["eval/frechet"]


def test_classes_are_paired_by_name_and_what_is_left_out_is_logged(monkeypatch):
    run, lines, within = comparing(), [], {"eval/intra_frechet", "eval/intra_sliced_wasserstein"}
    theirs = part(run.source, np.arange(1, 301))
    theirs.class_names = [str(number) for number in range(10)]  # the digits have numbers alone
    assert within < distances_of(theirs, run, lines.append).keys() and "classes" not in "".join(lines)
    theirs.class_names = theirs.class_names[::-1]
    assert not within & distances_of(theirs, run, lines.append).keys()
    assert sum("no distances within classes: --images" in line and "9, 8, 7" in line for line in lines) == 1
    theirs.class_names = None
    monkeypatch.setattr(tally, "MOST_BYTES_OF_CLASSES", 10 * 16**2 * 8 - 1)
    assert "eval/intra_frechet" not in distances_of(theirs, run, lines.append)
    assert sum("no eval/intra_frechet: the sums of 16 features within 10 classes" in line for line in lines) == 1


def test_the_recipes_own_features_follow_its_networks():
    class Judged(Tiny):
        def features(self, nets, batch):
            return tf.concat([tf.reshape(batch.images, (-1, 64))[:, :5], nets.discriminator(batch.images)], axis=1)

    run = tiny_run(Judged, eval_samples=100, eval_features="recipe")
    first = compared(run)
    assert compared(run) == first
    for variable in run.state.networks["discriminator"].trainable_variables:
        variable.assign(2 * variable)
    assert compared(run)["eval/frechet"] != first["eval/frechet"]
    with pytest.raises(UserError, match=r"--eval-features recipe: it has no features\(self, nets, batch\)"):
        comparing(eval_features="recipe")


def test_networks_that_have_diverged_end_the_evaluation_with_one_line():
    run = comparing()
    for _, average in run.state.sampling_values()["generator"]:
        average.assign(np.nan * average)
    with pytest.raises(RunError, match=r"evaluation: sample 0 is not finite, and 16 of 16.*the networks have diverged"):
        compared(run)


def test_a_sample_that_overflows_in_the_units_of_the_data_is_named():
    """Networks see log(1 + x), and exp(100) is more than float32 can hold."""
    values = SampleValues(parse("log1p", "--values", ("0",)))
    plan = Plan(DataSpec((4, 4, 1), 10, values=values))
    sums = Tally(plan, np.linspace(0, 10, 11)[None], 8)
    samples = np.ones((3, 4, 4, 1), np.float32)
    sums.add(SampleBatch(np.arange(3), samples, None, None))
    samples[1, 2, 2] = 100
    with pytest.raises(RunError, match=r"sample 4 in the data's units is not finite, and 1 of 3"):
        sums.add(SampleBatch(np.arange(3, 6), samples, None, None))


def test_too_few_samples_for_the_features_are_a_warning_with_the_number_needed():
    line = comparing(eval_samples=16).comparison.warning()
    assert "16 samples for 16 features" in line and "more than 16 samples, better 160" in line
    assert comparing(eval_samples=17).comparison.warning() is None


def test_too_few_samples_of_a_class_are_a_warning_with_the_number_needed():
    """About 15 samples of each class, then about 60."""
    for count, warnings in ((150, 1), (600, 0)):
        run, lines = tiny_run(Conditional, eval_samples=count, eval_features=POOLED), []
        compared(run, lines.append)
        compared(run, lines.append)
        found = [line for line in lines if "samples of class" in line]
        assert len(found) == warnings
        assert all("for 16 features" in line and "more than 160 samples, better 1,600" in line for line in found)


class Showing(Tiny):
    """Shows the data themselves."""

    shows_data = True

    def sample(self, nets, batch):
        return batch.images


def test_real_samples_are_not_mirrored_where_samples_start_from_data():
    run = tiny_run(Showing, eval_samples=40, flip=True)
    assert compared(run)["eval/sliced_wasserstein"] == pytest.approx(0, abs=1e-6)
    assert run.comparison.reals.mirrored == run.comparison.facts()["mirrored"] == []
    assert tiny_run(eval_samples=40, flip=True).comparison.reals.mirrored == ["width"]


def test_samples_that_could_not_start_from_broken_data_are_counted(tmp_path):
    data, settings = tmp_path / "data", {"channels": 1, "max_bad_fraction": 0.5, "run_dir": tmp_path / "run"}
    data.mkdir()
    for number in range(12):
        noise = np.random.default_rng(number).integers(0, 256, (8, 8), np.uint8)
        Image.fromarray(noise).save(data / f"{number:02}.bmp")
    (data / "07.bmp").write_bytes((data / "07.bmp").read_bytes()[:-20])
    run, lines = tiny_run(Showing, data=str(data), eval_samples=12, **settings), []
    compared(run, lines.append)
    said = f"--data {data}: 1 of 12 samples cannot be read; the first: 07.bmp: "
    assert sum(line.startswith(said) for line in lines) == 2  # the real ones, and those that start from them
    counts = ("samples", "real_samples", "kept_samples", "kept_real_samples")
    assert [run.comparison.facts()[name] for name in counts] == [11] * 4
    assert [bad.name for bad in run.comparison.bad_files] == ["07.bmp"] * 2


def test_features_without_samples_are_refused():
    with pytest.raises(UserError, match="--eval-features pooled:pooled: no samples are compared; add --eval-samples"):
        tiny_run(eval_features=POOLED)
    with pytest.raises(UserError, match="--eval-real-samples 0: no samples are compared; add --eval-samples"):
        tiny_run(eval_real_samples=0)


def test_ten_thousand_classes_take_no_longer_than_ten():
    """Classes without samples cost nothing; a batch was 0.15 s, and the sums of the ranks were put together in 40 s."""
    drawn = np.random.default_rng(0)
    samples, features = drawn.normal(size=(64, 2, 2, 1)).astype(np.float32), drawn.normal(size=(64, 8))
    seconds = {}
    for classes in (10, 10_000):
        plan = Plan(DataSpec((2, 2, 1), classes), lambda some: (features, None), 8, 0, classes)
        begin = time.perf_counter()
        sums = Tally(plan, np.linspace(-5, 5, 11)[None], 3200)
        for first in range(0, 3200, 64):
            sums.add(SampleBatch(first + np.arange(64), samples, np.arange(64) % 10, None))
        sums.fill(sums.arrays())
        seconds[classes] = time.perf_counter() - begin
        assert sums.of_classes.counts.sum() == sums.features.count == 3200
        assert sums.of_classes.of(3).mean == pytest.approx(features[3::10].mean(axis=0))
    assert seconds[10_000] < 0.5 + 5 * seconds[10]


def test_features_are_collected_before_they_are_multiplied(monkeypatch):
    """A product of d x d numbers takes as long for one sample as for hundreds."""
    plain, rows = Moments.add, []
    monkeypatch.setattr(Moments, "add", lambda self, some: rows.append(len(some)) or plain(self, some))
    run = tiny_run(Conditional, eval_samples=300, eval_features=POOLED)
    found = compared(run)
    assert rows.count(300) == 2 and len(rows) <= 2 + 2 * 10
    monkeypatch.setattr(tally, "COLLECTED_BYTES", 1)
    assert compared(tiny_run(Conditional, eval_samples=300, eval_features=POOLED)) == pytest.approx(
        found, rel=1e-6, nan_ok=True
    )


def test_distances_within_classes_of_too_few_samples_are_left_out_beforehand(tmp_path):
    for count, left_out in ((19, True), (200, False)):
        run, lines = tiny_run(Conditional, eval_samples=count, eval_features=POOLED), []
        assert ("eval/intra_frechet" in run.comparison.names) is not left_out
        assert set(compared(run, lines.append)) == run.comparison.names
        assert sum("no eval/intra_frechet: the rarest of 10 classes has " in line for line in lines) == left_out
    run = comparing()
    rare = part(run.source, np.flatnonzero((run.source.labels != 3) | (np.arange(len(run.source)) == 3)))
    assert RealSet(rare, run.recipe.data, count=10**6, batch_size=16, threads=2).fewest_of_class == 1
    assert "eval/intra_frechet" not in distances_of(rare, run)


@pytest.fixture
def kept(tmp_path):
    """A function that makes a comparison whose sums over the real samples are kept."""
    np.save(tmp_path / "some.npy", np.random.default_rng(0).integers(0, 256, (200, 8, 8), np.uint8))

    def make(**settings):
        run = comparing(data=str(tmp_path / "some.npy"), run_dir=tmp_path / "run", **settings)
        lines = []
        found = run.comparison(lines.append)
        return found, ["real samples read" in " ".join(lines)][0]

    return make


def files(tmp_path):
    return sorted((tmp_path / "run" / "cache").glob("*"))


def test_the_sums_over_the_real_samples_are_computed_once(kept, tmp_path):
    first, was_read = kept()
    assert not was_read
    again, was_read = kept()
    assert was_read and again == first
    for others in ({"eval_features": "none"}, {"eval_samples": 100}, {"flip": True}):
        assert (kept(**others)[1], kept(**others)[1]) == (False, True)
    assert len(files(tmp_path)) == 1  # the latest
    assert kept() == (first, False)


def test_two_functions_of_one_file_share_no_sums(kept, tmp_path):
    """They have equally many features and classes, so that the file of one would fit the other."""
    kept()
    other, was_read = kept(eval_features="pooled:spread")
    assert not was_read
    for path in files(tmp_path):
        path.unlink()
    assert kept(eval_features="pooled:spread")[0] == other


def test_a_function_whose_weights_have_changed_shares_no_sums_with_itself(kept, tmp_path, monkeypatch):
    """They may lie in another file than its code."""
    monkeypatch.syspath_prepend(tmp_path)
    code = "import numpy as np\nweights = np.load({!r})\n\ndef features(x):\n    return x[:, :4, :4, 0] * weights\n"
    (tmp_path / "weighted.py").write_text(code.format(str(tmp_path / "weights.npy")))

    def figures(factor):
        np.save(tmp_path / "weights.npy", np.float32(factor))
        sys.modules.pop("weighted", None)
        return kept(eval_features="weighted:features")

    found = [figures(factor) for factor in (1.0, 1.0, 3.0)]
    assert [was_read for _, was_read in found] == [False, True, False]
    assert found[2][0]["eval/frechet"] == pytest.approx(9 * found[0][0]["eval/frechet"], rel=1e-4)


def test_other_data_in_the_same_file_are_noticed(kept, tmp_path):
    first, _ = kept()
    some = np.load(tmp_path / "some.npy")
    np.save(tmp_path / "some.npy", some // 2)
    after, was_read = kept()
    assert not was_read and after["eval/histogram"] != first["eval/histogram"]


def test_two_functions_of_one_name_in_a_value_map_share_no_sums(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    np.save(tmp_path / "fields.npy", np.random.default_rng(0).normal(0, 1, (60, 8, 8, 1)).astype(np.float32))
    settings = {"data": str(tmp_path / "fields.npy"), "run_dir": tmp_path / "run", "eval_samples": 60}

    def was_read(factor):
        code = f"def there(x):\n    return x / {factor}\n\n\ndef back(x):\n    return x * {factor}\n"
        (tmp_path / "edited_map.py").write_text(code)
        sys.modules.pop("edited_map", None)
        lines = []
        compared(tiny_run(arrays=ArrayConfig(values="edited_map:there,back"), **settings), lines.append)
        return "real samples read" in " ".join(lines)

    assert [was_read(factor) for factor in ("2.0", "2.0", "16.0")] == [False, True, False]


def test_processes_that_write_the_sums_at_the_same_time_have_names_of_their_own(kept, monkeypatch):
    plain, names = np.savez, []
    monkeypatch.setattr(np, "savez", lambda file, **arrays: names.append(file.name) or plain(file, **arrays))
    kept()
    (name,) = names
    assert f"-{os.getpid()}.partial" in name


def test_a_damaged_file_is_written_anew(kept, tmp_path):
    first, _ = kept()
    content = bytearray(files(tmp_path)[0].read_bytes())
    for damage in (content[:-100], content[:2000] + b"\x00\x01" + content[2002:], b""):
        files(tmp_path)[0].write_bytes(damage)
        assert kept() == (first, False)
        assert kept() == (first, True)


def test_pytorch_fid_can_read_the_file(kept, tmp_path):
    """It takes the arrays mu and sigma."""
    kept()
    with np.load(files(tmp_path)[0]) as file:
        mean, covariance, origin = file["mu"], file["sigma"], file["origin"]
    pictures = np.load(tmp_path / "some.npy").astype(np.float64) / 127.5 - 1
    blocks = pictures.reshape(200, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(200, 16)
    assert np.allclose(mean, blocks.mean(axis=0), atol=1e-6)
    assert np.isclose(blocks, origin, atol=1e-6).all(axis=1).any()  # the sums are about the features of one of them
    assert np.allclose(covariance, np.cov(blocks, rowvar=False), atol=1e-6)


def test_large_samples_are_shortened_to_means_of_neighbours():
    samples = np.arange(2 * 130 * 64 * 1, dtype=np.float32).reshape(2, 130, 64, 1)
    found = shortened(samples)
    assert found.shape == (2, 32 * 64)
    assert found[0, 0] == samples[0, :4, 0].mean() and found[1, -1] == samples[1, 124:128, -1].mean()
    assert shortened(np.zeros((3, 5, 4))).shape == (3, 20)
    assert shortened(np.zeros((1, 51, 51, 25, 1), np.float32)).shape[1] <= 4096
