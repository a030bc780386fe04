"""What a machine can do at best, and how far rows and layers are from it."""

from __future__ import annotations

from enginebench.core.features import Feature, Verb

FEATURE = Feature(
    verbs={
        "roofline": Verb("verb", "Measure what this machine can do at best, for run and profile.", after="stages"),
    },
    functions={"roofline": "verb:roofline"},
)
