"""What inferences cost on a machine that is paid by the hour."""

from __future__ import annotations

import math

SECONDS_PER_HOUR = 3600.0


def cost_per_million(price_per_hour: float, throughput_per_s: float | None) -> float | None:
    """The price of a million inferences; None where the throughput is not known.

    price x 1e6 / (throughput x 3600), of a machine that is busy all the time: idle hours come on top.
    """
    if throughput_per_s is None or not throughput_per_s > 0 or not math.isfinite(throughput_per_s):
        return None
    return price_per_hour * 1e6 / (throughput_per_s * SECONDS_PER_HOUR)
