"""Other versions of a runtime: make environments, compare two of them, and find the version that changed."""

from enginebench.core.features import Feature, Verb

FEATURE = Feature(
    verbs=(
        Verb("bisect", "Guard (CI)", "Find the package version that made it slower or changed outputs.", "bisect"),
        Verb("env", "Guard (CI)", "Make environments with other runtime versions, to compare them.", "env"),
    ),
    offers={
        "diff_between": "upgrade:diff_environments",
        "diff_notes": "upgrade:format_changes",
        "join_layers": "upgrade:pair_layers",
    },
    functions={
        "bisect": "bisect:bisect",
        "list_environments": "env:list_environments",
        "make_environment": "env:make_environment",
        "remove_environment": "env:remove_environment",
    },
    documents={"enginebench.env/1": "env:EnvironmentsDocument", "enginebench.bisect/2": "bisect:BisectDocument"},
)
