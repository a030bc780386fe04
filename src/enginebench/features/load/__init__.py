"""Requests under arrivals: the server, the rates that are tried, and what was measured at each."""

from enginebench.core.features import Feature, Verb

FEATURE = Feature(
    verbs=(Verb("load", "Find", "Measure latency under request load, and capacity within an SLO.", "verb"),),
    functions={"load": "verb:load"},
    jobs={"serve": "jobs:ServeJob", "arrive": "jobs:ArriveJob"},
    offers={
        "bench_row": "winners:bench_row",
        "finish_run": "winners:load_winners",
        "load_row": "winners:load_row",
        "report": "verb:report_any",
    },
    documents={"enginebench.load/1": "document:LoadDocument"},
    rank=1,  # a run is bounded by its roofline before anything is put under load
)
