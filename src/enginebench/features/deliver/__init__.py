"""A row as a folder that runs without EngineBench: what stands in it, and how it is written (`as-shipped/`)."""

from __future__ import annotations

from enginebench.core.features import Feature, Verb

FEATURE = Feature(
    verbs={
        "deliver": Verb("verb", "Write a row of a run as a folder that runs without EngineBench.", after="run"),
    },
    functions={"deliver": "verb:deliver"},
    documents={"enginebench.deliver/1": "verb:DeliverDocument"},
)
