"""The entry of `fake`, whose times are set by its options."""

from typing import get_args

from enginebench.core.entry import Builder, Entry, OnDevice, Option, choice
from enginebench.core.records import Precision

FAULTS = ("none", "segfault", "oom", "hang", "garbage", "raise", "exit", "nan", "slow_build")

FAKE = Entry(
    name="fake",
    axes="open",
    module="enginebench.engines.fake",
    builder=Builder(kept_with={}),
    takes="onnx",
    precisions=("fp32", "tf32", "fp16", "bf16", "int8", "fp8"),
    options={
        "latency_us": Option(default="0", meaning="time of one run"),
        "waiting": choice("busy|asleep", "how a run's time passes; asleep leaves others the core"),
        "run_sd": Option(default="0", meaning="standard deviation of the log of a run's time, within a process"),
        "process_sd": Option(default="0", meaning="standard deviation of the log of a process's speed"),
        "build_sd": Option(default="0", meaning="standard deviation of the log of a build's speed"),
        "seed": Option(default="0", meaning="of these draws"),
        "bias": Option(default="0", signed=True, meaning="added to every output"),
        "build_s": Option(default="2", meaning="seconds that fault=slow_build waits"),
        "ran": Option(
            default="as asked", choices=("as asked", *get_args(Precision)), meaning="the precision that it reports"
        ),
        "ran_share": Option(default="1", meaning="fraction of its time in `ran`; the rest is reported as requested"),
        "trick": choice(
            "none|fast|slow|wrong|crash",
            search="fast|slow|wrong|crash",
            meaning="something for a search to find: 0.8 or 1.25 times the time, other outputs, or the end at loading",
        ),
        "fault": Option(default="none", choices=FAULTS, meaning="what goes wrong"),
        "at": Option(
            default="run", choices=("build", "load", "run", "proof"), meaning="the stage in which it goes wrong"
        ),
        "after": Option(default="0", meaning="complete runs before the fault"),
    },
    recipe="cpu",  # it computes nothing and takes any
    on={"cpu": OnDevice(any_batch=True), "cuda": OnDevice(any_batch=True)},
    verified_on="everywhere: it needs NumPy only",
)
