"""The recipe cyclegan, and what a run of two domains does. Modules: networks.cyclegan, data.domains"""

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from building import data_of, tiny_run
from hvdgan.errors import UserError
from hvdgan.recipe import Batch, DataSpec, Domain, Nets, Random
from hvdgan.recipe.batch import StateValues
from hvdgan.recipes.cyclegan import CycleGAN, CycleGANOptions
from hvdgan.settings.data import ArrayConfig
from launching import train
from saved import records, tensors
from tiny import Evaluated

G, POOL = 6, 3
OPTIONS = {"nf": 2, "blocks": 1, "pool": POOL, "steps": 5, "decay_steps": 2}
WORDS = (
    f"--recipe cyclegan --data pictures --image-size 16 --global-batch-size {G} --nf 2 --blocks 1 --pool {POOL} "
    "--learning-rate 1e-6 --steps 5 --decay-steps 2 --holdout 0.3 --eval-every 7 --sample-every 0 --run-dir run"
).split()
KEPT = ("ranks/state/pool_A", "ranks/state/pool_B", "ranks/state/pooled")


def write_pictures(folder, counts=(14, 9)):
    """Noise with squares, red in A and blue in B."""
    random = np.random.default_rng(0)
    for domain, count, colour in zip("AB", counts, ((255, 60, 0), (0, 60, 255)), strict=True):
        (folder / "pictures" / domain).mkdir(parents=True)
        for number in range(count):
            pixels = random.integers(0, 256, (16, 16, 3), dtype=np.uint8)
            top, left = random.integers(0, 8, 2)
            pixels[top : top + 8, left : left + 8] //= 2
            pixels[top : top + 8, left : left + 8] += np.array(colour, np.uint8) // 2
            Image.fromarray(pixels).save(folder / "pictures" / domain / f"{number}.png")
    return folder


def spec(*shape):
    one = DataSpec(shape, 9)
    return DataSpec(shape, 9, domains={"A": one, "B": one})


def evaluated(folder):
    lines = records(folder / "run")
    return {name: value for line in lines for name, value in line.items() if name.startswith("eval/")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What seven steps of one rank leave, and their metrics of held-out pictures."""
    folder = write_pictures(tmp_path_factory.mktemp("whole"))
    train(folder, *WORDS)
    return tensors(folder / "run", 7), evaluated(folder)


@pytest.mark.long
def test_any_number_of_ranks_computes_the_same_also_after_a_resume_with_the_pool_half_full(tmp_path, whole):
    """Adam's means are those of the gradients. Where one is 0 but for rounding, Adam steps as far: rates are small."""
    write_pictures(tmp_path)
    for ranks, last in ((1, 2), (2, 7)):
        train(tmp_path, *WORDS, "--max-steps", str(last), ranks=ranks)
    found, (expected, measured) = tensors(tmp_path / "run", 7), whole
    assert (
        expected["ranks/state/pool_A"].shape == (G, POOL, 16, 16, 3)
        and list(expected["ranks/state/pooled"]) == [POOL] * G
    )
    for name in KEPT:
        np.testing.assert_allclose(found[name], expected[name], atol=2e-3, err_msg=name)
    means = {name: value for name, value in expected.items() if name.endswith("/momentum")}
    largest = max(map(np.linalg.norm, means.values()))
    assert len(means) == sum(name.startswith("networks/") for name in expected)
    for name, value in means.items():
        assert np.linalg.norm(found[name] - value) <= 2e-2 * np.linalg.norm(value) + 1e-4 * largest, name
    assert {"eval/cycle_A", "eval/cycle_B"} <= measured.keys()
    assert evaluated(tmp_path) == pytest.approx(measured, rel=1e-3, nan_ok=True)


def test_a_pool_is_filled_then_gives_one_of_its_own_for_the_new_one_in_half_of_the_cases():
    recipe = CycleGAN(CycleGANOptions(**OPTIONS), spec(8, 8, 1))
    pool, count, swapped = tf.zeros((G, POOL, 8, 8, 1)), tf.zeros((G,), tf.int64), 0
    for step in range(40):
        random = Random(0, tf.constant(step, tf.int64), 0, G)
        batch, fake = Batch(None, None, random, {}), tf.random.stateless_normal((G, 8, 8, 1), (step, 1))
        batch.state = StateValues({"pool_A": pool, "pooled": count})
        before = pool.numpy()
        seen, pool = recipe.seen(batch, fake, "A")
        for place in range(G):
            held = [picture.tobytes() for picture in before[place]]
            mine, shown, after = fake[place].numpy(), seen[place].numpy().tobytes(), pool[place].numpy()
            if step < POOL:
                assert shown == mine.tobytes() == after[step].tobytes()
            elif shown != mine.tobytes():
                swapped += 1
                assert after[held.index(shown)].tobytes() == mine.tobytes()
            else:
                np.testing.assert_array_equal(after, before[place])
        count = tf.minimum(count + 1, POOL)
    assert 0.35 < swapped / ((40 - POOL) * G) < 0.65


@pytest.fixture(scope="module")
def run():
    settings = {"data": "digits", "other_data": ("synthetic",), "channels": 1, "flip": True}
    return tiny_run(CycleGAN, CycleGANOptions(**OPTIONS), **settings)


@pytest.mark.long
def test_losses_are_those_of_the_paper(run):
    data = data_of(run)
    images = {name: tf.cast(data[key], tf.float32) / 127.5 - 1.0 for name, key in (("A", "images"), ("B", "B/images"))}
    batch = Batch(
        None, None, Random(0, tf.constant(0, tf.int64), 0, 16), {}, domains={n: Domain(x) for n, x in images.items()}
    )
    nets = Nets(run.state.networks, training=True)
    loss, metrics = run.recipe.make(nets, batch)
    expected = 0.0
    for mine, other in (("A", "B"), ("B", "A")):
        make, back = getattr(nets, f"generator_{other}"), getattr(nets, f"generator_{mine}")
        cycle = np.abs(back(make(images[mine])) - images[mine]).mean()
        identity = np.abs(back(images[mine]) - images[mine]).mean()
        fool = np.square(getattr(nets, f"discriminator_{other}")(make(images[mine])) - 1).mean()
        expected += fool + 10 * cycle + 5 * identity
        assert float(metrics[f"cycle_{mine}"]) == pytest.approx(cycle, rel=1e-4)
    assert float(loss) == pytest.approx(expected, rel=1e-4)


def test_arrays_that_are_no_pictures_are_refused(tmp_path):
    np.savez(tmp_path / "two.npz", **{name: np.zeros((20, 16, 16, 1), np.float32) for name in "AB"})
    with pytest.raises(UserError, match="cyclegan takes 8-bit pictures"):
        tiny_run(CycleGAN, data=str(tmp_path / "two.npz"), arrays=ArrayConfig(values="none"), image_size=None)


class Both(Evaluated):
    """A recipe of two domains, which looks at the first one only."""

    domains = ("A", "B")


def both(folder, **settings):
    return tiny_run(Both, data=str(folder / "pictures"), channels=1, **settings)


def write_table(folder, names, rows=18):
    lines = [",".join([*names, "age"])]
    lines += [",".join([*(f"{number}.png" for _ in names), str(number)]) for number in range(rows)]
    (folder / "ages.csv").write_text("\n".join(lines) + "\n")
    return ArrayConfig(condition_table=folder / "ages.csv", condition_values="none")


@pytest.mark.parametrize(
    ("columns", "weights", "said"),
    [
        (None, np.ones(9), "--balance .*weights.npy: does not say which numbers are of A"),
        ([], None, "--condition-table .*ages.csv: no column holds the paths"),
        (["file"], None, "--condition-table .*ages.csv: does not say which numbers are of A"),
    ],
)
def test_numbers_that_do_not_say_of_which_domain_they_are_are_refused(tmp_path, columns, weights, said):
    """Both have nine pictures, so that the numbers of one would fit the other."""
    write_pictures(tmp_path, (9, 9))
    settings = {}
    if weights is not None:
        np.save(tmp_path / "weights.npy", weights)
        settings["balance"] = str(tmp_path / "weights.npy")
    if columns is not None:
        settings["arrays"] = write_table(tmp_path, columns, rows=9)
    with pytest.raises(UserError, match=said):
        both(tmp_path, **settings)


def test_a_table_of_the_names_of_all_domains_gives_each_its_rows(tmp_path):
    write_pictures(tmp_path, (9, 9))
    for number in range(9):
        (tmp_path / "pictures" / "B" / f"{number}.png").rename(tmp_path / "pictures" / "B" / f"{9 + number}.png")
    run = both(tmp_path, arrays=write_table(tmp_path, ["file"]), holdout=0.0)
    ages = [each.conditions[:, 0].astype(int).tolist() for each in run.source.domains.values()]
    assert ages == [[*range(9)], [*sorted(range(9, 18), key=lambda number: f"{number}.png")]]


@pytest.mark.long
def test_half_of_the_pictures_of_each_domain_are_mirrored_by_draws_of_its_own(run):
    data = data_of(run)
    batch, ways = run.steps[0].batch_at(tf.constant(0, tf.int64), data), set()
    for name, key in (("A", "images"), ("B", "B/images")):
        given, seen = data[key].numpy() / 127.5 - 1, batch.domains[name].images.numpy()
        stays = [np.allclose(one, other, atol=1e-5) for one, other in zip(seen, given, strict=True)]
        expected = [one if stay else one[:, ::-1] for one, stay in zip(given, stays, strict=True)]
        np.testing.assert_allclose(seen, expected, atol=1e-5)
        assert 3 <= sum(stays) <= 13
        ways.add(tuple(stays))
    assert len(ways) == 2


def test_all_pictures_are_trained_on_if_one_domain_is_too_small_to_be_evaluated(tmp_path):
    run = both(write_pictures(tmp_path, (60, 3)))
    assert [len(each) for each in run.source.domains.values()] == [60, 3]
    assert run.held_out is None and run.evaluator is None
    assert any(
        line.startswith("no evaluations: ") and f"3 samples of {tmp_path}/pictures/B" in line
        for line in run.source.remarks
    )
