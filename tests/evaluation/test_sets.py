"""The sets that are compared, on any number of ranks, and the file of the results. Modules: evaluation.results"""

import dataclasses

import numpy as np
import pytest

from building import tiny_run
from hvdgan.distributed.ranks import Ranks
from hvdgan.evaluation import results
from hvdgan.evaluation.sets import GeneratedSet, Reading, RealSet
from tiny import Tiny


def of_all_ranks(chosen, size):
    """The samples of a set by their numbers, as all ranks together have them; none twice."""
    found = {}
    for rank in range(size):
        for some in chosen.batches(dataclasses.replace(Ranks(), rank=rank, size=size)):
            assert not found.keys() & set(some.numbers.tolist())
            found |= dict(zip(some.numbers.tolist(), some.samples, strict=True))
    return found


def generated(run, count=21, batch_size=4, seed=3):
    return GeneratedSet(run.recipe, run.state.sampling_nets, run.source, Reading(batch_size, 2), seed, count)


def reals(run, count, batch_size=4, mirrored=()):
    return RealSet(run.source, run.recipe.data, Reading(batch_size, 2), count=count, mirrored=mirrored)


def same(one, other):
    assert one.keys() == other.keys()
    return all(np.array_equal(one[number], other[number]) for number in one)


def test_a_sample_does_not_depend_on_the_ranks_nor_on_the_number_of_samples():
    run, size = tiny_run(), 3
    for make, batch_size in ((generated, 4), (reals, 5)):
        first = of_all_ranks(make(run, 21), 1)
        assert sorted(first) == list(range(21))
        assert same(of_all_ranks(make(run, 21, batch_size=batch_size), size), first)
        more = of_all_ranks(make(run, 30), size)
        assert same({number: more[number] for number in range(21)}, first)
    others = of_all_ranks(generated(run, batch_size=16), size)
    first = of_all_ranks(generated(run), 1)
    assert all(np.allclose(others[number], first[number], atol=1e-6) for number in first)
    assert not same(of_all_ranks(generated(run, seed=4), 1), first)
    everything = of_all_ranks(reals(run, 0), size)
    pixels = run.source.fetch_batch(np.arange(len(run.source))).astype(np.float32) / 127.5 - 1
    assert sorted(each.tobytes() for each in everything.values()) == sorted(each.tobytes() for each in pixels)


def test_flips_add_each_sample_mirrored_but_not_where_samples_start_from_data():
    class Showing(Tiny):
        shows_data = True

        def sample(self, nets, batch):
            return batch.images

    run = tiny_run(eval_samples=40, flip=True)
    plain, both = of_all_ranks(reals(run, 5), 1), of_all_ranks(reals(run, 5, mirrored=["width"]), 2)
    assert sorted(both) == list(range(10))
    for number, sample in plain.items():
        assert np.array_equal(both[2 * number], sample) and np.array_equal(both[2 * number + 1], sample[:, ::-1])
    assert run.comparison.reals.mirrored == ["width"]
    run = tiny_run(Showing, eval_samples=40, flip=True)
    assert run.comparison(print)["eval/sliced_wasserstein"] == pytest.approx(0, abs=1e-6)
    assert run.comparison.reals.mirrored == []


def test_a_line_that_a_crash_has_cut_off_spoils_no_other_and_the_latest_counts(tmp_path):
    results.append(tmp_path, {"identity": "one", "value": 1})
    with (tmp_path / results.FILE).open("ab") as file:
        file.write(b'[1, 2]\n\nnull\n{"identity": "tw\xff')
    results.append(tmp_path, {"identity": "one", "value": 3})
    assert [each["value"] for each in results.records(tmp_path)] == [1, 3]
    assert results.found(tmp_path, "one")["value"] == 3 and not results.found(tmp_path, "tw")
    assert list(results.records(tmp_path / "nowhere")) == []
