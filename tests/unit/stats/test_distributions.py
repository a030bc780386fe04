"""The normal distribution and Student's t, against scipy and against closed forms."""

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from enginebench.stats.intervals import NORMAL, quantile_of_t


def test_quantiles_of_t() -> None:
    """One degree of freedom has a closed form; an infinite number is the normal distribution."""
    assert quantile_of_t(0.5, 3) == 0 and quantile_of_t(0.025, 4.7) == pytest.approx(-quantile_of_t(0.975, 4.7))
    assert quantile_of_t(0.975, float("inf")) == NORMAL.inv_cdf(0.975)
    assert quantile_of_t(0.975, 1) == pytest.approx(np.tan(np.pi * 0.475), rel=1e-12)
    assert quantile_of_t(0.975, 1e9) == pytest.approx(NORMAL.inv_cdf(0.975), rel=1e-6)


def test_the_normal_distribution() -> None:
    shares, places = np.linspace(1e-9, 1 - 1e-9, 501), np.linspace(-8, 8, 501)
    assert [NORMAL.inv_cdf(float(p)) for p in shares] == pytest.approx(ndtri(shares), rel=1e-9, abs=1e-12)
    assert [NORMAL.cdf(float(x)) for x in places] == pytest.approx(ndtr(places), rel=1e-12)
