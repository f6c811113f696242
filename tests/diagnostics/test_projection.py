"""The cost model of the all-reduce."""

import pytest

from hvdgan.diagnostics.speed.projection import Link, Model, efficiency, fit


def test_the_model_is_fitted_to_what_it_made_and_projects_a_ring():
    model = fit([(size, 1e-4 + 2e-9 * size) for size in (4, 4096, 2**20, 2**24)], ranks=2)
    assert (model.fixed_seconds, model.seconds_per_byte) == pytest.approx((1e-4, 2e-9), rel=1e-6)
    assert model.relative_error < 1e-6
    slow = Link(gbit_per_sec=1, latency_us=10)  # 8 ns for a byte, slower than the 2 ns that were measured
    expected = 1e-4 + 14 * 10e-6 + 14 / 8 * 1e6 * 8e-9
    assert model.seconds(1e6, 8, slow) == pytest.approx(expected)
    assert efficiency(0.1, {1e6: 2.0}, model, 8, slow) == pytest.approx(0.1 / (0.1 + 2 * expected))


def test_neither_term_of_the_model_is_negative():
    falling = fit([(10, 2.0), (1000, 1.0)], ranks=2)
    assert falling == Model(2, pytest.approx(1.2), 0.0, pytest.approx(0.4))
    assert fit([(10, 1.0), (1000, 200.0)], ranks=2).fixed_seconds == 0.0
