"""The entry of OpenVINO, which is not imported here."""

from enginebench.core.entry import Entry, Option
from enginebench.engines.verified import CPU_VERIFIED, FORCE

OPENVINO = Entry(
    name="openvino",
    axes="fixed",
    module="enginebench.engines.backends.openvino.openvino",
    builds_with={},
    takes="onnx",
    reopens=("openvino",),
    options={
        "shapes": Option(
            default="static",
            choices=("static", "dynamic"),
            search=("dynamic",),
            meaning="compile for the bound shapes, and again for new ones; or once for all shapes",
        ),
        "hint": Option(
            default="latency",
            choices=("latency", "throughput"),
            search=("throughput",),
            under_load=True,
            meaning="under load: streams and threads as asked for, or OpenVINO's own choice for throughput",
        ),
        "floats": Option(
            default="fp32",
            choices=("fp32", "bf16"),
            search=("bf16",),
            only_in=("int8",),
            meaning="INT8 graphs: what is not INT8 in them computes in FP32, or in BF16",
        ),
        "force": FORCE,
    },
    recipe="nncf",
    other_recipes=("cpu", "dynamic", "w8"),
    chooses_threads=("cpu",),
    unasked={"cpu": {}},
    distributions=("openvino",),
    extra="openvino",
    packages=("openvino",),
    verified_on=f"openvino 2026.4.1, {CPU_VERIFIED}",
)
