"""Annex: an INT8 network as gateware, its integer reference, simulation, host driver, and the latency budget."""

from enginebench.core.features import Feature, Verb

FEATURE = Feature(
    verbs=(
        Verb("fpga", "FPGA", "Simulate or synthesize an INT8 network behind a UART.", "verb"),
        Verb("budget", "FPGA", "Estimate the speed-up of an accelerator behind a link.", "budget"),
    ),
    functions={"budget": "budget:budget"},
    engines={"fpga-sim": "entry:FPGA_SIM"},
    documents={
        "enginebench.budget/1": "budget:CallBudget",
        "enginebench.fpga.simulate/1": "verb:SimulateDocument",
        "enginebench.fpga.synth/1": "synth:Synthesis",
    },
    rank=3,  # an annex: listed last
)
