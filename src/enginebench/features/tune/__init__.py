"""`tune`: what may be set, who proposes settings, the race between them, and precision by layer."""

from enginebench.core.features import Feature, Verb

FEATURE = Feature(
    verbs=(Verb("tune", "Find", "Search engine settings for the fastest with the same outputs.", "verb"),),
    functions={"tune": "verb:tune"},
    jobs={"regions": "jobs:RegionsJob", "sensitivity": "jobs:SensitivityJob"},
    offers={
        "tune_run": "session:tune_run",
        "check_region_engine": "region_graphs:check_region_engine",
        "exclude_slow_regions": "region_graphs:exclude_slow_regions",
    },
    documents={
        "enginebench.tune/1": "records:TuneDocument",
        "enginebench.mixed/2": "mixed:MixedDocument",
        "enginebench.regions/1": "region_graphs:RegionsDocument",
    },
)
