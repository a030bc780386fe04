"""The normal distribution and Student's t against scipy, which is right but slow to import."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from scipy.special import ndtr, ndtri, stdtr, stdtrit

from enginebench.analyze.distributions import quantile_of_normal, quantile_of_t, share_of_normal
from processes import environment

LEVELS = (0.001, 0.025, 0.2, 0.51, 0.75, 0.8, 0.95, 0.975, 0.995, 0.9995, 1 - 1e-6)
FREEDOMS = (1, 1.2, 2, 2.7, 4, 5, 9, 9.5, 19.3, 49, 59.9, 60.1, 99, 1e3, 1e5)


@pytest.mark.parametrize("freedom", FREEDOMS)
def test_quantiles_of_t(freedom: float) -> None:
    found = [quantile_of_t(p, freedom) for p in LEVELS]
    assert found == pytest.approx([float(stdtrit(freedom, p)) for p in LEVELS], rel=1e-10)
    assert stdtr(freedom, found) == pytest.approx(LEVELS, rel=1e-11)


def test_the_middle_and_the_limit_of_t() -> None:
    assert quantile_of_t(0.5, 3) == 0
    assert quantile_of_t(0.975, float("inf")) == quantile_of_normal(0.975)
    assert quantile_of_t(0.975, 1) == pytest.approx(np.tan(np.pi * 0.475), rel=1e-12)


def test_the_normal_distribution() -> None:
    shares, places = np.linspace(1e-9, 1 - 1e-9, 501), np.linspace(-8, 8, 501)
    assert [quantile_of_normal(float(p)) for p in shares] == pytest.approx(ndtri(shares), rel=1e-9, abs=1e-12)
    assert [share_of_normal(float(x)) for x in places] == pytest.approx(ndtr(places), rel=1e-12)


def test_a_report_needs_no_scipy(tmp_path) -> None:
    """It was a third of a second of every verb that shows an interval."""
    code = (
        "import sys; from enginebench.analyze.intervals import measure_spread; "
        "measure_spread([1, 2.0]).interval(0.95); "
        "from enginebench.analyze.metrics.shares import estimate_share; estimate_share(9, 10); "
        "from enginebench.analyze.tails import estimate_tail; import numpy as np; "
        "estimate_tail([np.random.default_rng(0).exponential(size=5000)], 0.99); "
        "sys.exit('scipy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], env=environment(tmp_path), check=False).returncode == 0
