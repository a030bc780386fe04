"""Many models on many machines: what a sweep requests, the store that it fills, and which machine measures what.

A group (one model on one kind of machine) is measured interleaved on one machine, as a run is, by `main_job`.
"""

from enginebench.core.features import Feature, Verb
from enginebench.core.hooks import FolderMatch, FolderReport, HistoryFolder, NodeQuery

FEATURE = Feature(
    verbs=(Verb("sweep", "Many machines", "Measure many models on many machines, here or on a Ray cluster.", "verb"),),
    functions={"sweep": "verb:sweep"},
    hooks={
        NodeQuery: "ray_fleet:ask_nodes",
        HistoryFolder: "reading:fetch_results_folder",
        FolderMatch: "reading:holds_sweep",
        FolderReport: "reporting:report_any",
    },
    documents={"enginebench.sweep/1": "document:SweepDocument", "enginebench.sweep-plan/1": "records:SweepPlan"},
)
