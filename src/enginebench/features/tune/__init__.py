"""`tune`: the space of settings, proposers of settings, the race between them, and precision by layer."""

from enginebench.core.features import Feature, Verb
from enginebench.core.hooks import RegionEngineCheck, SettingsSearch, SlowRegions

FEATURE = Feature(
    verbs=(Verb("tune", "Find", "Search engine settings for the fastest with the same outputs.", "verb"),),
    functions={"tune": "verb:tune"},
    jobs={"regions": "jobs:RegionsJob", "sensitivity": "jobs:SensitivityJob"},
    hooks={
        SettingsSearch: "session:tune_run",
        RegionEngineCheck: "region_graphs:check_region_engine",
        SlowRegions: "region_graphs:exclude_slow_regions",
    },
    documents={
        "enginebench.tune/1": "records:TuneDocument",
        "enginebench.mixed/2": "mixed:MixedDocument",
        "enginebench.regions/1": "region_graphs:RegionsDocument",
    },
)
