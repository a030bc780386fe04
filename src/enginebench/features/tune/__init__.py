"""`tune`: what may be set, who proposes settings, the race between them, and precision by layer."""

from __future__ import annotations

from enginebench.core.features import Feature, Verb

FEATURE = Feature(
    verbs={
        "tune": Verb("verb", "Search the settings of every engine for the fastest with the same answers.", after="run"),
    },
    functions={"tune": "verb:tune"},
    jobs={"sensitivity": "jobs:SensitivityJob"},
    offers={"tune_run": "sitting:tune_run"},
    documents={
        "enginebench.tune/1": "document:TuneDocument",
        "enginebench.mixed/1": "mixed:MixedDocument",
    },
)
