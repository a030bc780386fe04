"""Measure the peaks of a machine, and compare configurations and layers with them."""

from enginebench.core.features import Feature, Verb
from enginebench.core.hooks import LayerLimits, ModelBound, RunFinished

FEATURE = Feature(
    verbs=(Verb("roofline", "Understand", "Measure this machine's roofline: peak compute and bandwidth.", "verb"),),
    jobs={"ceilings": "jobs:PeaksJob", "work": "jobs:WorkJob"},
    hooks={RunFinished: "limits:bound_results", LayerLimits: "limits:limit_layers", ModelBound: "limits:bound_model"},
    functions={"roofline": "verb:roofline"},
)
