"""Comparing generated with real samples: the sets, what moves the distances, what is kept, logged and refused.
Modules: evaluation.comparison, evaluation.distances, evaluation.real_statistics,
evaluation.sets, evaluation.tally"""

import dataclasses

import numpy as np
import pytest

from building import tiny_run
from hvdgan.distributed.ranks import Ranks
from hvdgan.errors import RunError
from hvdgan.evaluation import tally
from hvdgan.evaluation.comparison import Comparison, plan_for
from hvdgan.evaluation.feature_extractors import Features
from hvdgan.evaluation.formulas import frechet_distance, neighbours
from hvdgan.evaluation.sets import GeneratedSet, Reading, RealSet, SampleBatch
from hvdgan.evaluation.tally import Plan, Tally
from hvdgan.recipe import DataSpec
from hvdgan.values.sample_values import SampleValues
from hvdgan.values.value_map import parse
from pooled import pooled
from tiny import Tiny


def comparing(recipe=Tiny, **settings):
    return tiny_run(recipe, **{"eval_samples": 300, "eval_features": pooled(), **settings})


def distances_of(source, run):
    """The distances of a source's samples from the first half of the digits."""
    half = run.source.chosen(np.arange(0, len(run.source), 2))
    both = [RealSet(each, run.recipe.data, Reading(16, 2), count=0) for each in (source, half)]
    plan = plan_for(run.config.evaluation, run.recipe, run.state.sampling_nets, both, batch_size=16)
    return Comparison(*both, plan, None, Ranks())(print)


def test_the_figures_are_those_of_their_formulas_and_the_same_samples_have_no_distance():
    run = comparing()
    halves = [np.arange(start, len(run.source), 2) for start in (1, 0)]
    pictures = run.source.fetch_batch(np.arange(len(run.source)))["images"] / 127.5 - 1
    blocks = pictures.reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(-1, 16)

    def frechet(chosen):
        both = [blocks[half[chosen[half]]] for half in halves]
        return frechet_distance(*(each for some in both for each in (some.mean(0), np.cov(some, rowvar=False))))

    found, labels = distances_of(run.source.chosen(halves[0]), run), run.source.labels
    assert found["eval/frechet"] == pytest.approx(frechet(labels >= 0), rel=1e-4)
    within = np.mean([frechet(labels == label) for label in range(10)])
    assert found["eval/intra_frechet"] == pytest.approx(within, rel=1e-4) != found["eval/frechet"]
    found = distances_of(run.source.chosen(halves[1]), run)
    for name in ("frechet", "sliced_wasserstein", "histogram", "spectrum", "intra_sliced_wasserstein"):
        assert found[f"eval/{name}"] == pytest.approx(0, abs=1e-9)
    assert found["eval/precision"] == found["eval/recall"] == found["eval/coverage"] == 1
    found = distances_of(run.source.chosen(np.flatnonzero(labels == 0)), run)  # precise, and recalls one class of ten
    expected = neighbours(blocks[labels == 0], blocks[halves[1]])
    assert {name: found[f"eval/{name}"] for name in expected} == pytest.approx(expected)
    assert found["eval/precision"] > 0.9 and found["eval/recall"] < 0.3


def test_more_samples_than_are_kept_are_summed(monkeypatch):
    """Nearest neighbours and projections are those of the first samples, the other distances those of all."""
    everything = comparing().comparison(print)
    monkeypatch.setattr(tally, "KEPT", 40)  # some batches of 16 are kept whole, one in part, others not at all
    run = comparing()
    some = run.comparison(print)
    counts = ("samples", "real_samples", "kept_samples", "kept_real_samples")
    assert [run.comparison.facts()[name] for name in counts] == [300, 300, 40, 40]
    assert set(some) == run.comparison.names  # which are known before the first evaluation
    for name in ("histogram", "spectrum", "frechet", "inception_score"):
        assert some[f"eval/{name}"] == pytest.approx(everything[f"eval/{name}"], rel=1e-12)
    assert some["eval/sliced_wasserstein"] != everything["eval/sliced_wasserstein"]


def test_what_is_not_finite_ends_the_evaluation_with_one_line():
    run = comparing()
    for _, average in run.state.sampling_values()["generator"]:
        average.assign(np.nan * average)
    with pytest.raises(RunError, match=r"evaluation: sample 0 is not finite, and 16 of 16.*the networks have diverged"):
        run.comparison(print)
    # Networks see log(1 + x), and exp(100) is more than float32 can hold.
    plan = Plan(DataSpec((4, 4, 1), 10, values=SampleValues(parse("log1p", "--values", ("0",)))), Features())
    sums, samples = Tally(plan, np.linspace(0, 10, 11)[None], 8, np.zeros(0)), np.ones((3, 4, 4, 1), np.float32)
    samples[1, 2, 2] = 100
    with pytest.raises(RunError, match=r"sample 4 in the data's units is not finite, and 1 of 3"):
        sums.add(SampleBatch(np.arange(3, 6), samples, None, None, {}))


@pytest.fixture
def kept(tmp_path):
    """A function that compares with pictures of a file, and returns the figures and whether sums were read."""
    np.save(tmp_path / "some.npy", np.random.default_rng(0).integers(0, 256, (200, 8, 8), np.uint8))

    def make(**settings):
        run, lines = comparing(data=str(tmp_path / "some.npy"), run_dir=tmp_path / "run", **settings), []
        found = run.comparison(lines.append)
        return found, "real samples read" in " ".join(lines)

    return make


@pytest.mark.long
def test_the_sums_over_the_real_samples_are_computed_once(kept, tmp_path):
    first, was_read = kept()
    assert not was_read and kept() == (first, True)
    for others in ({"eval_features": "none"}, {"flip": True}):
        assert (kept(**others)[1], kept(**others)[1]) == (False, True)
    assert len(list((tmp_path / "run" / "cache").iterdir())) == 1  # the latest
    assert kept() == (first, False)
    np.save(tmp_path / "some.npy", np.load(tmp_path / "some.npy") // 2)  # other data under the same name
    after, was_read = kept()
    assert not was_read and after["eval/histogram"] != first["eval/histogram"]


def of_all_ranks(chosen, size):
    """The samples of a set by their numbers, as all ranks together have them; none twice."""
    found = {}
    for rank in range(size):
        for some in chosen.batches(dataclasses.replace(Ranks(), rank=rank, size=size)):
            assert not found.keys() & set(some.numbers.tolist())
            found |= dict(zip(some.numbers.tolist(), some.samples, strict=True))
    return np.stack([found[number] for number in range(len(found))])


def generated(run, count=21, batch_size=4, seed=3):
    return GeneratedSet(run.recipe, run.state.sampling_nets, run.source, Reading(batch_size, 2), seed, count)


def reals(run, count, batch_size=4, mirrored=()):
    return RealSet(run.source, run.recipe.data, Reading(batch_size, 2), count=count, mirrored=mirrored)


def test_a_sample_does_not_depend_on_the_ranks_nor_on_the_number_of_samples():
    run = tiny_run()
    for make, batch_size in ((generated, 4), (reals, 5)):
        first = of_all_ranks(make(run, 21), 1)
        np.testing.assert_array_equal(of_all_ranks(make(run, 21, batch_size=batch_size), 3), first)
        np.testing.assert_array_equal(of_all_ranks(make(run, 30), 3)[:21], first)
    first = of_all_ranks(generated(run), 1)
    np.testing.assert_allclose(of_all_ranks(generated(run, batch_size=16), 3), first, atol=1e-6)
    assert not np.array_equal(of_all_ranks(generated(run, seed=4), 1), first)
    pixels = run.source.fetch_batch(np.arange(len(run.source)))["images"].astype(np.float32) / 127.5 - 1
    assert sorted(each.tobytes() for each in of_all_ranks(reals(run, 0), 3)) == sorted(map(bytes, pixels))


def test_flips_add_each_sample_mirrored_but_not_where_samples_start_from_data():
    class Showing(Tiny):
        shows_data = True

        def sample(self, nets, batch):
            return batch.images

    run = tiny_run(eval_samples=40, flip=True)
    plain, both = of_all_ranks(reals(run, 5), 1), of_all_ranks(reals(run, 5, mirrored=["width"]), 2)
    np.testing.assert_array_equal(both, np.stack([plain, plain[:, :, ::-1]], axis=1).reshape(10, 8, 8, 1))
    assert run.comparison.reals.mirrored == ["width"]
    run = tiny_run(Showing, eval_samples=40, flip=True)
    assert run.comparison(print)["eval/sliced_wasserstein"] == pytest.approx(0, abs=1e-6)
    assert run.comparison.reals.mirrored == []
