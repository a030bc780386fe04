"""The ways in which requests arrive, named as in MLPerf LoadGen."""

from typing import Literal

Scenario = Literal["single", "multi", "server", "offline"]
