"""Requests under arrivals: the server, the rates that are tried, and what was measured at each."""

from enginebench.core.features import Feature, Verb
from enginebench.core.hooks import FolderReport, LoadCheck, LoadTrial, RunFinished

FEATURE = Feature(
    verbs=(Verb("load", "Find", "Measure latency under request load, and capacity within an SLO.", "verb"),),
    functions={"load": "verb:load"},
    jobs={"serve": "jobs:ServeJob", "arrive": "jobs:ArriveJob"},
    hooks={
        LoadCheck: "winners:bench_configuration",
        RunFinished: "winners:load_winners",
        LoadTrial: "winners:load_row",
        FolderReport: "verb:report_any",
    },
    documents={"enginebench.load/1": "document:LoadDocument"},
    rank=1,  # a run is bounded by its roofline before anything is put under load
)
