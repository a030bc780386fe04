"""Other versions of a runtime: make environments, compare two of them, and find the version that changed."""

from enginebench.core.features import Feature, Verb
from enginebench.core.hooks import DiffNotes, EnvironmentDiff, LayerPairing

FEATURE = Feature(
    verbs=(
        Verb("bisect", "Guard (CI)", "Find the package version that made it slower or changed outputs.", "bisect"),
        Verb("env", "Guard (CI)", "Make environments with other runtime versions, to compare them.", "env"),
    ),
    hooks={
        EnvironmentDiff: "upgrade:diff_environments",
        DiffNotes: "upgrade:format_changes",
        LayerPairing: "upgrade:pair_layers",
    },
    functions={
        "bisect": "bisect:bisect",
        "list_environments": "env:list_environments",
        "make_environment": "env:make_environment",
        "remove_environment": "env:remove_environment",
    },
    documents={"enginebench.env/1": "env:EnvironmentsDocument", "enginebench.bisect/2": "document:BisectDocument"},
)
