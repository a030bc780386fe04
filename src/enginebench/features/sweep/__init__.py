"""Many models on many machines: what a sweep asks for, the store that it fills, and who measures what where.

A group (one model on one kind of machine) is measured in turns on one machine, as a run is. Nothing here knows how a
row is measured: that is `main_job`'s story.
"""

from enginebench.core.features import Feature, Verb

FEATURE = Feature(
    verbs=(Verb("sweep", "Many machines", "Measure many models on many machines, here or on a Ray cluster.", "verb"),),
    functions={"sweep": "verb:sweep"},
    offers={
        "ask_nodes": "ray_fleet:ask_nodes",
        "find_rows_folder": "reading:fetch_rows_folder",
        "holds_sweep": "reading:holds_sweep",
        "report": "reporting:report_any",
    },
    documents={"enginebench.sweep/1": "document:SweepDocument", "enginebench.sweep-plan/1": "records:SweepPlan"},
)
