"""The entry of OpenVINO, which is not imported here."""

from enginebench.core.entry import Builder, Entry, Int8Choice, OnDevice, OtherRecipes, choice
from enginebench.engines.verified import CPU_VERIFIED, FORCE, PADDING

BESIDE = {"floats": "bf16"}
# The fastest configurations of docs/which-precision.md for four of six models, and 1% behind for the others.
MIXED = {"recipe": "cpu", **BESIDE}
OPENVINO = Entry(
    name="openvino",
    axes="fixed",
    module="enginebench.engines.backends.openvino.openvino",
    builder=Builder(kept_with={}),
    takes="onnx",
    precisions=("fp32", "fp16", "bf16", "int8", "int4"),
    reopens=("openvino",),
    options={
        "shapes": choice(
            "static|dynamic",
            "compile for the bound shapes, and again for new ones; or once for all shapes",
            search="dynamic",
        ),
        "pad": PADDING,
        "hint": choice(
            "latency|throughput",
            "under load: streams and threads as asked for, or OpenVINO's own choice for throughput",
            search="throughput",
            under_load=True,
        ),
        "floats": choice(
            "fp32|bf16",
            "INT8 graphs: what is not INT8 in them computes in FP32, or in BF16",
            search="bf16",
            only_in=("int8",),
        ),
        "force": FORCE,
    },
    # Convolutions are as fast as by nncf, with and without AMX, and have less noise: efficientnet-lite0 is within the
    # limits by it, and not by nncf (docs/which-precision.md).
    recipe="cpu",
    # One thread, batch 1, on a Xeon with AMX: MiniLM's size 2.85 ms, by nncf 3.21; ViT-tiny 11.1 ms beside BF16, by
    # nncf 13.6; efficientnet_b0 10.9 ms, by cpu 19.1; RegNetY-400MF 7.2 ms, by cpu 9.3. A detector with SiLU ends its
    # process in OpenVINO 2026.4 by cpu (SIGFPE).
    other_recipes=OtherRecipes(
        by_graph=(
            Int8Choice(graph="attention", instructions=frozenset({"amx_int8"}), recipe="tensorrt"),
            Int8Choice(graph="attention", recipe="nncf"),
            Int8Choice(graph="gates", recipe="tensorrt"),
        ),
        next={"cpu": "tensorrt", "nncf": "tensorrt", "tensorrt": "nncf"},
        beside_bf16=BESIDE,
        searched=("nncf", "tensorrt", "dynamic", "w8"),
    ),
    chooses_threads=("cpu",),
    on={
        "cpu": OnDevice(
            default={},
            for_shapes=({"shapes": "dynamic"}, {"shapes": "static"}),
            known_good={"convolutions": MIXED, "transformers": MIXED, "recurrent": MIXED},
        )
    },
    distributions=("openvino",),
    extra="openvino",
    packages=("openvino",),
    verified_on=f"openvino 2026.4.1, {CPU_VERIFIED}",
)
