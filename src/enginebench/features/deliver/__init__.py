"""A row as a folder that runs without EngineBench: what stands in it, and how it is written (`as-shipped/`)."""

from enginebench.core.features import Feature, Verb

FEATURE = Feature(
    verbs=(Verb("deliver", "Deploy", "Deploy a configuration: a folder that runs without EngineBench.", "verb"),),
    functions={"deliver": "verb:deliver"},
    offers={
        "check_free": "writing:check_free",
        "deliver_also": "verb:deliver_also",
        "plan_delivery": "planning:plan_delivery",
    },
    documents={"enginebench.deliver/1": "verb:DeliverDocument"},
)
