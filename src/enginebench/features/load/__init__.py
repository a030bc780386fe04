"""Requests under arrivals: the server, the rates that are tried, and what was measured at each."""

from __future__ import annotations

from enginebench.core.features import Feature, Verb

FEATURE = Feature(
    verbs={
        "load": Verb("verb", "Measure latency under arrivals, and the rate at which a limit breaks.", after="bench"),
    },
    functions={"load": "verb:load"},
    documents={"enginebench.load/1": "document:LoadDocument"},
)
