"""The loop with an engine on a device: copies, cold caches, clocks that rise."""

from typing import Any

import numpy as np
import pytest

from enginebench.core.records import MeasureSpec
from enginebench.measure.loop import measure_engine
from enginebench.measure.stopping import WarmupRule
from scripted import ScriptedClock, ScriptedEngine

MS = 1_000_000
FEEDS = [{"x": np.zeros(1, np.float32)}]


class DeviceEngine(ScriptedEngine):
    """A scripted engine with a device's clocks and cache."""

    def __init__(self, clock: ScriptedClock, *args: Any, **kwargs: Any) -> None:
        super().__init__(clock, *args, **kwargs)
        self.flushes = 0
        self.flush_ns = 5 * MS

    last_device_ns = staticmethod(lambda: 700)
    last_enqueue_ns = staticmethod(lambda: 300)
    last_h2d_ns = staticmethod(lambda: 20)
    last_d2h_ns = staticmethod(lambda: 10)
    last_staging_ns = staticmethod(lambda: 40)

    def flush_cache(self) -> None:
        self.flushes += 1
        self._clock.advance(self.flush_ns)


@pytest.mark.parametrize("cache", ["hot", "cold"])
@pytest.mark.parametrize("scope", ["compute", "io"])
def test_the_device_is_read_its_copies_in_io_alone_and_no_flush_is_timed(scope: Any, cache: Any) -> None:
    clock = ScriptedClock()
    engine = DeviceEngine(clock, [MS], bind_ns=1000, fetch_ns=2000)
    spec = MeasureSpec(iters=20, warmup=2, scope=scope, cache=cache)
    measured = measure_engine(engine, FEEDS, spec, clock=clock)
    assert measured.latency_ns == [MS + (3000 if scope == "io" else 0)] * 20
    assert (measured.device_ns, measured.enqueue_ns) == ([700] * 20, [300] * 20)
    copies = [[20] * 20, [10] * 20, [40] * 20] if scope == "io" else [None] * 3
    assert [measured.h2d_ns, measured.d2h_ns, measured.staging_ns] == copies
    assert engine.flushes == (engine.calls if cache == "cold" else 0), "before each call"


def test_a_clock_that_never_settles_ends_with_the_limit() -> None:
    rule = WarmupRule(None, 1.0)
    mhz = 300
    while not rule.is_over():
        rule.add_window(10, 1000.0, 10 * MS, mhz := round(mhz * 1.1))
    assert not rule.settled
    assert rule.dropped == 1000
