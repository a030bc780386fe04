"""Measure the peaks of a machine, and compare configurations and layers with them."""

from enginebench.core.features import Feature, Verb

FEATURE = Feature(
    verbs=(Verb("roofline", "Understand", "Measure this machine's roofline: peak compute and bandwidth.", "verb"),),
    jobs={"ceilings": "jobs:PeaksJob", "work": "jobs:WorkJob"},
    offers={"finish_run": "limits:bound_results", "limit_layers": "limits:limit_layers", "bound": "limits:bound_model"},
    functions={"roofline": "verb:roofline"},
)
