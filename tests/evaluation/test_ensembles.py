"""Scores of ensembles of whole fields: the formulas of the recipe's metrics, missing places, and spectra.
Modules: evaluation.ensembles"""

import numpy as np
import pytest
import tensorflow as tf

from hvdgan.evaluation.ensembles import ensemble_figures, ensemble_sums, windowed_powers
from hvdgan.evaluation.fields import Rings
from hvdgan.recipe import metrics


def sums_of(truth, members):
    """The sums over a field (*space, C) and members (M, *space, C)."""
    rings, channels = Rings(truth.shape[:-1]), truth.shape[-1]
    powers = {
        "truth": windowed_powers(rings, truth),
        "members": np.mean([windowed_powers(rings, each) for each in members], axis=0),
    }
    found = ensemble_sums(truth.reshape(-1, channels), members.reshape(len(members), -1, channels))
    return {name: each.tolist() for name, each in {**found, **powers}.items()}


def test_scores_of_fields_are_those_of_the_recipes_metrics_and_missing_places_do_not_count():
    rng = np.random.default_rng(0)
    truth, members = (rng.integers(0, 6, (*many, 24, 18, 2)).astype(np.float32) for many in ((2,), (5, 2)))  # with ties
    found = ensemble_figures([sums_of(truth[n], members[:, n]) for n in range(2)], ["a", "b"], 18)
    for channel, name in enumerate("ab"):
        one = tf.constant(truth[..., [channel]]), tf.constant(members[..., [channel]])
        expected = {"crps": np.mean(metrics.fair_crps(*one))}
        shares = np.mean(metrics.rank_frequencies(*one), axis=0)
        expected |= {f"rank_{rank}": share for rank, share in enumerate(shares)}
        expected["spread"] = np.sqrt(members[..., channel].var(axis=0, ddof=1).mean())
        expected["rmse"] = np.sqrt(((members.mean(axis=0) - truth)[..., channel] ** 2).mean())
        for key, value in expected.items():
            assert found[f"{key}_{name}"] == pytest.approx(value, rel=1e-5), key
    land = truth.copy()
    land[:, :7, :, 1] = np.nan
    seen = ensemble_figures([sums_of(land[n], members[:, n]) for n in range(2)], ["a", "b"], 18)
    of_sea = ensemble_figures([sums_of(truth[n, 7:], members[:, n, 7:]) for n in range(2)], ["a", "b"], 17)
    for key in ("crps", "spread", "rmse", "rank_0", "rank_5"):
        assert seen[f"{key}_a"] == found[f"{key}_a"]
        assert seen[f"{key}_b"] == pytest.approx(of_sea[f"{key}_b"], rel=1e-9)
    alone = ensemble_figures([sums_of(truth[0, ..., :1], members[:1, 0, ..., :1])], ["a"], 18)
    assert alone["spread"] == 0 and alone["crps"] == pytest.approx(np.abs(truth[0] - members[0, 0])[..., 0].mean())


def test_spectra_are_compared_at_each_wavelength_also_where_the_ends_of_a_field_do_not_meet():
    """A slope of 1,000 makes a jump between the ends, whose power would hide the waves that are added."""
    rng = np.random.default_rng(0)
    slope = np.linspace(0, 1000, 128)[:, None] * np.ones(96)
    wave = np.sin(2 * np.pi * np.arange(96) / 3)  # of 3 pixels
    noise = rng.normal(size=(128, 96))
    truth = (slope + noise + wave)[..., None]
    members = np.stack([(slope + noise + factor * wave)[..., None] for factor in (2.0, 2.0)])
    found = ensemble_figures([sums_of(truth * scale, members * scale) for scale in (1e-12, 1e-12)], ["0"], 96)
    assert found["power_2_4"] > 1.05 and found["spectrum"] > 0.005
    for name in ("power_4_8", "power_8_16", "power_16_32", "power_32_64"):
        assert found[name] == pytest.approx(1, abs=0.01), name
    same = ensemble_figures([sums_of(truth, truth[None])], ["0"], 96)
    assert same["spectrum"] == 0 and same["power_2_4"] == 1
