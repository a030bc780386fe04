"""The entry of trtexec; nothing is started here."""

from enginebench.core.entry import Builder, Entry, Option, switch
from enginebench.engines.backends.tensorrt.entries import BUILD_OPTIONS, PRECISIONS
from enginebench.features.trtexec.executable import FIX, find_trtexec

TRTEXEC = Entry(
    name="trtexec",
    axes="fixed",
    module="enginebench.features.trtexec.engine",
    builder=Builder(kept_with={}, tunes=True, beside_itself=True, qdq_rules=True),
    takes="onnx",
    also_takes=("plan",),
    precisions=PRECISIONS,
    options={
        **BUILD_OPTIONS,
        "path": Option(default="", outside=True, meaning="the executable, if it is not in $TRTEXEC or on PATH"),
        "graph": switch("launch as a CUDA graph", on=True),
        "spin": switch("spin while waiting for the GPU", on=True),
        "streams": Option(default="1", meaning="queries in flight at once; above 1 latencies overlap"),
        "profile_index": Option(default="0", meaning="optimization profile to run"),
        "shapes": Option(default="", meaning="shapes to run with, NAME:1x3x224x224 (only for a finished plan)"),
        "implicit_batch": Option(default="", meaning="batch of a plan without an explicit batch axis (8.6)"),
        "extra": Option(default="", outside=True, meaning="extra arguments for building alone, quoted as for a shell"),
        "run_extra": Option(default="", outside=True, meaning="the same for timing too, quoted as for a shell"),
    },
    refuses={"calib_data": "it cannot calibrate on data; give --calib-cache instead of --calib, or --engine tensorrt"},
    device="cuda:0",
    find_program=find_trtexec,
    command=FIX,
    verified_on="NVIDIA's own TensorRT 8.6.0 on an H200 and an H100. 10 and 11: open-source trtexec over a fake "
    "library; no builder of 10 or 11 has run with it",
)
