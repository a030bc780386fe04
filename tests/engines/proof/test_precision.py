"""The proof of precision comes from the runtimes' records, also where the label says otherwise."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from calls import run_on
from enginebench.core.errors import MeasurementError, UsageError
from enginebench.core.feeds import random_feeds
from enginebench.core.protocols import LayerProfiler, PrecisionProof
from enginebench.core.records import Artifact, EngineSpec
from enginebench.engines import proof as proofs
from enginebench.engines.backends.onnxruntime import ort as runtime
from enginebench.engines.backends.onnxruntime.ort import OrtBackend
from enginebench.engines.backends.openvino.openvino import OpenvinoBackend
from enginebench.engines.backends.openvino.settings import find_node_dtype
from enginebench.engines.backends.torch import operators
from enginebench.engines.backends.torch.operators import find_operator_dtype, name_modules, read_operator_times
from enginebench.engines.proof import Operator, relabel_moves, share_times, summarize_layers
from enginebench.stats.effective import check_precision
from events import make_event
from graphs import write_graph


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """One convolution between Q/DQ pairs: eight bits inside, whatever the artifact's label."""
    w = np.random.default_rng(0).integers(-127, 128, (16, 16, 3, 3)).astype(np.int8)
    weights = {"w": w, "s": np.float32(0.05), "ws": np.float32(0.01), "z": np.uint8(128), "wz": np.int8(0)}
    text = """q (float[1, 16, 32, 32] x) => (float[1, 16, 30, 30] y) {
        xq = QuantizeLinear (x, s, z)
        xd = DequantizeLinear (xq, s, z)
        wd = DequantizeLinear (w, ws, wz)
        c = Conv (xd, wd)
        cq = QuantizeLinear (c, s, z)
        y = DequantizeLinear (cq, s, z)
    }"""
    artifact = write_graph(tmp_path_factory.mktemp("q") / "q.onnx", text, weights)
    return replace(artifact, precision="fp32", recipe=None)


@pytest.mark.parametrize("backend", [OrtBackend(), OpenvinoBackend()], ids=["ort", "openvino"])
def test_eight_bits_are_found_under_an_fp32_label(backend: Any, quantized: Artifact) -> None:
    with backend.load(quantized, EngineSpec(backend=backend.name)) as engine:
        engine.bind(random_feeds(quantized.inputs, 1, 0))
        shares = engine.effective_precision()
    assert shares["int8"] > 0.1
    assert sum(shares.values()) == pytest.approx(1)
    ran, warnings = check_precision("fp32", shares)
    assert ran == "int8"
    assert [c.code for c in warnings] == ["relabelled"]


def test_proof_leaves_no_files(load_engine: Callable[..., Any], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with load_engine("ort") as engine:
        engine.bind(random_feeds(engine.inputs, 1, 0))
        engine.effective_precision()
    assert list(tmp_path.iterdir()) == []


def test_shares_add_up_and_an_interruption_is_not_a_precision() -> None:
    times = {"f32": 1.0, "I8": 5.0, "uint8": 1.0, "int64": 2.0, "c10::Half": 1.0, "bf16": 0.0}
    shares = share_times(Operator(dtype, time) for dtype, time in times.items())
    assert shares == {"int8": 0.6, "other": 0.2, "fp32": 0.1, "fp16": 0.1}
    assert next(iter(shares)) == "int8"
    assert share_times([]) == {}
    calm = [Operator("f32", 1.0), Operator("I8", 9.0)]
    assert proofs.prove_precision([calm, [Operator("f32", 900.0), Operator("I8", 9.0)], calm]) == {
        "int8": 0.9,
        "fp32": 0.1,
    }
    assert proofs.choose_calm_runs([]) == []
    assert proofs.choose_calm_runs([calm]) == [calm]
    assert [proofs.count_watched_runs(s) for s in (0.0, 1e-5, 0.1, 60.0)] == [50, 50, 10, 5]


@pytest.mark.parametrize(
    ("op", "inputs", "dtype"),
    [
        ("Conv", [{"float": [1]}, {"float": [1]}], "float"),
        ("QLinearConv", [{"uint8": [1]}, {"float": []}], "uint8"),
        ("DynamicQuantizeMatMul", [{"float": [1]}], "int8"),
        ("QuantizeLinear", [{"float": [1]}], "reorder"),
        ("Cast", [{"float": [1]}], "reorder"),
        ("ReorderOutput", [{"float": [1]}], "reorder"),
        ("Range", [], "none"),
        ("Clip", [{}, {"float16": [1]}], "float16"),
    ],
)
def test_kernels_compute_in_the_type_of_their_input(op: str, inputs: Any, dtype: str) -> None:
    assert runtime.find_kernel_dtype({"op_name": op, "input_type_shape": inputs}) == dtype


def test_kernels_inside_are_not_counted_twice_and_first_runs_not_at_all() -> None:
    def kernel(op: str, start: int, duration: int) -> dict[str, Any]:
        return {"ts": start, "dur": duration, "args": {"op_name": op}}

    kernels = [
        kernel("MatMul", 12, 30),
        kernel("Loop", 10, 80),
        kernel("If", 45, 40),
        kernel("Relu", 50, 30),
        kernel("MatMul", 90, 5),
        kernel("Relu", 90, 0),
        kernel("Scan", 96, 3),
        kernel("MatMul", 96, 4),
    ]
    assert runtime.subtract_nested(kernels) == [30, 10, 10, 30, 5, 0, 3, 4]

    def kernel(start: int, duration: int) -> dict[str, Any]:
        args = {"op_name": "Relu", "input_type_shape": [{"float": [1]}]}
        return {"cat": "Node", "name": "r_kernel_time", "ts": start, "dur": duration, "args": args}

    runs = [{"cat": "Session", "name": "model_run", "ts": t, "dur": 10} for t in (0, 20)]
    assert runtime.read_kernel_times([kernel(1, 9), runs[0], kernel(21, 3), runs[1], {"name": "x"}]) == [
        [Operator("float", 3000.0, "r", "Relu")]
    ]


WIDE = (64, 256)


def make_control_flow(folder: Path, kind: str) -> Artifact:
    """Products in FP32 inside of an `If`, or of a `Loop`, and one after it; a mask and a selection before."""
    wide = "float[64, 256]"

    def multiply(name: str, count: int) -> str:
        products = [f"{name}{i} = MatMul ({f'{name}{i - 1}' if i else 'x1'}, w)" for i in range(count)]
        return f"{name} () => ({wide} {name}{count - 1}) {{ {' '.join(products)} }}"

    loop = f"""loop (int64 i, bool cond, {wide} v) => (bool again, {wide} b) {{
        again = Identity (cond) m = MatMul (v, w) b = Relu (m)
    }}"""
    control = {
        "If": f"z = If (c) <then_branch = {multiply('then', 7)}, else_branch = {multiply('else', 6)}>",
        "Loop": f"z = Loop (n, c, x1) <body = {loop}>",
    }
    text = f"""control ({wide} x) => ({wide} y) {{
        mask = Greater (x, zero)
        x1 = Where (mask, x, zero)
        sum = ReduceSum <keepdims = 0> (x)
        c = Greater (sum, zero)
        cast = Cast <to = 7> (sum)
        n = Min (cast, most)
        {control[kind]}
        y = MatMul (z, w)
    }}"""
    weights = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32) / 16
    return write_graph(folder / f"{kind}.onnx", text, {"w": weights, "zero": np.float32(0), "most": np.int64(8)})


def prove_control_flow(backend: Any, folder: Path, kind: str) -> dict[str, float]:
    artifact = make_control_flow(folder, kind)
    with backend.load(artifact, EngineSpec(backend=backend.name)) as engine:
        engine.bind({"x": np.random.default_rng(1).random(WIDE, np.float32)})
        shares: dict[str, float] = engine.effective_precision()
    assert sum(shares.values()) == pytest.approx(1)
    return shares


@pytest.mark.serial  # an interruption of a few milliseconds, in whichever node it falls, moves these shares
@pytest.mark.parametrize("kind", ["If", "Loop"])
def test_a_graph_inside_of_an_openvino_node_is_unknown(tmp_path: Path, kind: str) -> None:
    shares = prove_control_flow(OpenvinoBackend(), tmp_path, kind)
    assert set(shares) <= {"fp32", "unknown", "other", "reorder"}
    assert shares["unknown"] > 0.5 and shares["fp32"] > 0
    ran, (warning,) = check_precision("fp32", shares)
    assert (ran, warning.code) == ("fp32", "unproved_precision") and "unknown precision" in warning.message


@pytest.mark.parametrize("kind", ["If", "Loop"])
def test_onnx_runtime_knows_the_graph_inside(tmp_path: Path, kind: str) -> None:
    shares = prove_control_flow(OrtBackend(), tmp_path, kind)
    # The container itself took all the time of its kernels once more: with them counted twice, FP32 is about a half.
    assert shares["fp32"] > 0.6 and "int8" not in shares
    assert check_precision("fp32", shares) == ("fp32", ())


@pytest.mark.parametrize("backend", [OrtBackend(), OpenvinoBackend()], ids=["ort", "openvino"])
def test_bytes_and_masks_are_no_int8(tmp_path: Path, backend: Any) -> None:
    """A picture in bytes that is turned and cut, and a mask, before products in FP32."""
    text = """bytes (uint8[1, 224, 224, 3] x) => (float[1, 3, 224, 224] y) {
        t = Transpose <perm = [0, 3, 1, 2]> (x)
        f = Cast <to = 1> (t)
        big = Greater (f, half)
        small = Less (f, much)
        mask = And (big, small)
        rest = Not (mask)
        y = Where (rest, f, half)
    }"""
    artifact = write_graph(tmp_path / "bytes.onnx", text, {"half": np.float32(128), "much": np.float32(200)})
    with backend.load(artifact, EngineSpec(backend=backend.name)) as engine:
        engine.bind({"x": np.random.default_rng(0).integers(0, 255, (1, 224, 224, 3), np.uint8)})
        shares = engine.effective_precision()
    assert "int8" not in shares and sum(shares.values()) == pytest.approx(1)
    assert check_precision("fp32", shares)[0] == "fp32"


@pytest.mark.parametrize(
    ("node", "exec_type", "dtype"),
    [
        ("Convolution", "brgconv_avx512_1x1_f32", "f32"),
        ("Convolution", "jit_avx512_I8", "I8"),
        ("If", "unknown_I8", "unknown"),
        ("If", "ref_I8", "unknown"),
        ("Loop", "unknown_i32", "unknown"),
        ("Something", "unknown_f32", "unknown"),
        ("Something", "I8", "unknown"),
        ("Something", "", "unknown"),
        ("Reorder", "unknown_I8", "reorder"),
    ],
)
def test_the_type_of_a_node_is_read_strictly(node: str, exec_type: str, dtype: str) -> None:
    assert find_node_dtype(node, exec_type) == dtype


@pytest.mark.parametrize("kind", ["Concat", "Shape", "Subgraph"])  # the last two of a network that takes bytes
def test_moved_bytes_are_int8_in_a_quantized_network_only(kind: str) -> None:
    moved, product, kept = Operator("u8", 1, "c", kind), Operator("I8", 1, "p", "Convolution"), Operator("f32", 1)
    assert share_times(relabel_moves([moved, product, kept])) == pytest.approx({"int8": 2 / 3, "fp32": 1 / 3})
    assert share_times(relabel_moves([moved, kept, kept])) == pytest.approx({"other": 1 / 3, "fp32": 2 / 3})


TIMES = st.floats(1e-3, 1e6)
KNOWN = st.builds(
    Operator, st.sampled_from([*proofs.NAMES]), TIMES, st.just("k"), st.sampled_from(["Conv", *proofs.MOVES])
)
STRANGE = st.builds(
    Operator,
    st.one_of(st.text(max_size=12), st.sampled_from([f"{a}_{b}" for a in ("unknown", "ref") for b in proofs.NAMES])),
    TIMES,
    st.just("s"),
    st.sampled_from(["Conv", *proofs.MOVES, "If"]),
).filter(lambda operator: operator.dtype.lower() not in proofs.NAMES)


@given(st.lists(KNOWN, max_size=8), st.lists(STRANGE, min_size=1, max_size=8))
def test_what_nobody_knows_raises_no_precision(known: list[Operator], strange: list[Operator]) -> None:
    before, after = (share_times(relabel_moves(run)) for run in (known, [*known, *strange]))
    assert sum(after.values()) == pytest.approx(1)
    assert after["unknown"] == pytest.approx(sum(o.time_ns for o in strange) / sum(o.time_ns for o in known + strange))
    assert all(share <= before[name] for name, share in after.items() if name != "unknown")


def test_events_belong_to_the_run_around_them_and_only_outermost_count() -> None:
    spans = [make_event("enginebench run", 20, 9), make_event("enginebench run", 0, 9)]
    first, second = make_event("aten::relu", 1, 2, "float"), make_event("aten::add", 21, 2, "float")
    assert proofs.split_watched_runs([second, *spans, first, make_event("aten::late", -5, 1)]) == [[first], [second]]
    events = [
        make_event("aten::empty", 102, 3),
        make_event("aten::conv2d", 0, 50, "float"),
        make_event("aten::convolution", 1, 40, "float"),
        make_event("## Call CompiledFxGraph x ##", 100, 30),
        make_event("aten::addmm", 110, 12, "c10::BFloat16"),
    ]
    assert list(read_operator_times(events)) == [
        Operator("fp32", 50.0, "conv2d", "conv2d"),
        Operator("", 3.0, "empty", "empty"),
        Operator("c10::BFloat16", 12.0, "addmm", "addmm"),
        Operator("generated code", 15.0, "generated code", "fused"),
    ]


def test_fp32_shortened_by_a_setting_is_found_and_casts_are_no_work() -> None:
    import torch

    try:
        torch.set_float32_matmul_precision("medium")
        assert find_operator_dtype("aten::linear", "float") == "bf16"
        assert find_operator_dtype("aten::relu", "float") == "float"
        assert find_operator_dtype("aten::conv2d", "float") == "fp32"
        assert find_operator_dtype("aten::linear", "c10::Half") == "c10::Half"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert find_operator_dtype("aten::linear", "float") == "fp32"
    assert find_operator_dtype("aten::to", "float") == "reorder"
    assert find_operator_dtype("onednn::qconv_pointwise", "unsigned char") == "int8"
    assert find_operator_dtype("aten::_int_mm", "signed char") == "int8"


# Layers from the runtimes' own records: named, typed, in the precision that ran, once for proof and layers.

# On a fast CPU the layers of a single sample are shorter than OpenVINO's counters can tell.
BATCH = 64


def test_operators_of_one_name_are_one_layer() -> None:
    calm = [Operator("f32", 4.0, "a", "Conv"), Operator("I8", 2.0, "b", "Gemm"), Operator("I8", 1.0, "a", "Conv")]
    noisy = [operator._replace(time_ns=99.0) for operator in calm]
    found = summarize_layers([noisy, calm, calm, noisy], "p", ("n",))
    assert (found.runs, found.profiler, found.notes) == (2, "p", ("n",))
    assert [(x.name, x.kind, x.mean_ns, x.median_ns, x.precision) for x in found.layers] == [
        ("a", "Conv", 5.0, 5.0, "fp32"),
        ("b", "Gemm", 2.0, 2.0, "int8"),
    ]
    (layer,) = summarize_layers([[Operator("int64", 1.0, "shape", "Shape")]], "p").layers
    assert layer.precision is None
    for runs, told in (([[]], "1 run"), ([[], []], "2 runs")):
        with pytest.raises(MeasurementError, match=f"p recorded no layer in {told}$"):
            summarize_layers(runs, "p")
    run = [
        Operator("reorder", 9.0, "conv1", "Conv2d", kernel="nchwToNhwcKernel"),
        Operator("c10::Half", 1.0, "conv1", "Conv2d", kernel="fprop"),
        Operator("reorder", 2.0, "to", "to"),
    ]
    conv, moved = summarize_layers([run], "a profiler").layers
    assert (conv.precision, moved.precision) == ("fp16", "reorder")
    assert (conv.mean_ns, conv.kernels) == (10.0, ("nchwToNhwcKernel", "fprop"))


# What makes the record of each engine.
RECORDS = {"pytorch": "record_profile", "ort": "record_events", "openvino": "record_counters"}


@pytest.mark.parametrize("name", RECORDS)
def test_fp32_is_proved_by_the_record_that_the_layers_are_of(name, load_engine, monkeypatch) -> None:
    with load_engine(name, batch=BATCH) as engine:
        assert isinstance(engine, LayerProfiler) and isinstance(engine, PrecisionProof)
        with pytest.raises(UsageError, match="call bind first"):
            engine.effective_precision()
        before = run_on(engine, random_feeds(engine.inputs, BATCH, 0))["scores"]
        profile, proof = engine.profile_layers(), engine.effective_precision()
        np.testing.assert_array_equal(engine.fetch()["scores"], before)
        monkeypatch.setattr(f"{type(engine).__module__}.{RECORDS[name]}", None)
        assert engine.profile_layers() == profile  # the record is kept
        engine.bind(random_feeds(engine.inputs, BATCH, 1))
        with pytest.raises(TypeError):
            engine.profile_layers()  # and forgotten with its inputs
    assert set(proof) <= {"fp32", "reorder"} and proof["fp32"] > 0.4 and sum(proof.values()) == pytest.approx(1)
    total = sum(layer.mean_ns for layer in profile.layers)
    assert total > 0 and all(layer.name and layer.kind for layer in profile.layers)
    fp32 = sum(layer.mean_ns for layer in profile.layers if layer.precision == "fp32")
    assert fp32 / total == pytest.approx(proof["fp32"], abs=0.02)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_eager_layers_are_modules_without_hooks_or_wrappers() -> None:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    modules = name_modules(model)
    assert list(modules) == ["", "0", "1"] and name_modules(lambda x: x) == {}
    hooks = torch.nn.modules.module
    with torch.autograd.profiler.profile(use_kineto=True) as profiler, operators.mark_modules(modules):
        assert hooks._global_forward_pre_hooks and hooks._global_forward_hooks
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in modules.values())
        torch.nn.Tanh()(model(torch.zeros(1, 2)))  # another's module is none of ours
    spans = [e.name() for e in profiler.kineto_results.events() if e.name().startswith(operators.WATCHED_MODULE)]
    assert sorted(spans) == [operators.WATCHED_MODULE + path for path in ("", "0", "1")]
    assert not hooks._global_forward_pre_hooks and not hooks._global_forward_hooks
    import torch

    from enginebench.engines.pytorch_module import _CastModule

    model = torch.nn.Sequential(torch.nn.ReLU())
    assert list(name_modules(_CastModule(model, torch.bfloat16, []))) == ["", "0"]
    assert name_modules(torch.jit.script(torch.nn.ReLU())) == {}


def test_operators_belong_to_the_innermost_module_around_them() -> None:
    span = "enginebench module "
    events = [
        make_event(span, 0, 100),
        make_event(f"{span}block", 10, 60),
        make_event(f"{span}block.conv", 20, 10),
        make_event("aten::conv2d", 21, 5, "float"),
        make_event("aten::add", 40, 2, "float"),
        make_event("aten::add", 45, 3, "float"),
        make_event("aten::flatten", 80, 1, "float"),
    ]
    found = read_operator_times(events, {"block.conv": "Conv2d"})
    assert [(x.name, x.kind, x.time_ns) for x in found] == [
        ("block.conv", "Conv2d", 5.0),
        ("block: add", "add", 2.0),
        ("block: add 2", "add", 3.0),
        ("flatten", "flatten", 1.0),
    ]
