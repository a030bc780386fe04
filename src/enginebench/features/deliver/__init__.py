"""A configuration as a folder that runs without EngineBench: its contents, and how it is written (`as-shipped/`)."""

from enginebench.core.features import Feature, Verb
from enginebench.core.hooks import BundlePlace, BundlePlan, BundlePrinter, BundleWriter

FEATURE = Feature(
    verbs=(Verb("deliver", "Deploy", "Deploy a configuration: a folder that runs without EngineBench.", "verb"),),
    functions={"deliver": "verb:deliver"},
    hooks={
        BundlePlace: "writing:check_free",
        BundlePlan: "planning:plan_delivery",
        BundleWriter: "verb:deliver_run",
        BundlePrinter: "verb:deliver_also",
    },
    documents={"enginebench.deliver/1": "verb:DeliverDocument"},
)
