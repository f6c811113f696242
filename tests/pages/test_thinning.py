"""Curves are read in bounded memory, and thinned ones keep their extremes. Modules: pages.reading.metrics"""

import numpy as np

from hvdgan.pages.reading.metrics import POINTS, Series


def test_a_series_keeps_its_extremes_however_it_is_read_and_counts_what_is_not_finite():
    values = np.random.default_rng(0).normal(size=200_000)
    values[150_000], values[77] = np.nan, 50.0
    series = Series("loss")
    for begin in range(0, len(values), 3_000):
        series.add(np.arange(begin, min(begin + 3_000, len(values))), values[begin : begin + 3_000])
    steps, kept = series.curve()
    assert len(steps) <= POINTS and kept.max() == 50.0 and kept.min() == np.nanmin(values)
    assert (series.count, series.not_finite) == (199_999, 1)
    assert np.isclose(series.steady, np.nanmean(values)) and series.last == values[-1]
    assert series.best("max") == (77, 50.0) and series.best("min")[1] == np.nanmin(values)
