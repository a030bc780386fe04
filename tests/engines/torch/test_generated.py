"""Kernels that torch.compile generated, each under the layers whose work it does."""

import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor

from enginebench.core.records import Artifact, EngineSpec, TensorSpec
from enginebench.engines.backends.torch import generated, operators
from enginebench.engines.backends.torch.engine import WatchedTorchEngine
from enginebench.engines.backends.torch.generated import GENERATED, GeneratedCode, NamedCall, TracedNode, match_run
from enginebench.engines.backends.torch.operators import WATCHED_MODULE, Launch, list_outermost, name_kernels
from enginebench.engines.proof import Operator, record_profile
from enginebench.engines.pytorch_compile import leave_recurrent
from events import make_event
from factories import Wrapped

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Block(torch.nn.Module):
    """A residual block whose one ReLU is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = (torch.nn.Conv2d(4, 4, 3, padding=1) for _ in range(2))
        self.bn = torch.nn.BatchNorm2d(4)
        self.relu = torch.nn.ReLU()

    def forward(self, x: Any) -> Any:
        y = self.conv2(self.relu(self.bn(self.conv1(x))))
        y += x
        return self.relu(y)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.fc = torch.nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        return torch.softmax(self.fc(self.block(x).mean((2, 3))), 1)


LAYERS = [
    "block.conv1",
    "block.bn",
    "block.relu: relu",
    "block.conv2",
    "block: add",
    "block.relu: relu 2",
    "mean",
    "fc",
    "softmax",
]
PRODUCTS = {"block.conv1", "block.conv2", "fc"}
IMAGE = torch.zeros(1, 4, 8, 8)


def test_generated_code_is_joined_to_modules() -> None:
    """With the real compiler: each layer is told once, and every kernel was timed."""
    inductor.freezing = False  # of whatever was loaded before in this process
    module = Net().eval()
    code = GeneratedCode(module, fullgraph=True)
    compiled = torch.compile(module, dynamic=False, fullgraph=True)

    def prepare(run: Any) -> None:
        with code.listen():
            run()

    x, y = (TensorSpec(name=n, dtype="float32", shape=shape) for n, shape in (("x", (1, 4, 8, 8)), ("y", (1, 3))))
    artifact = Artifact(kind="torch", model="net", path="", sha256="", files=(), inputs=(x,), outputs=(y,))
    spec, options = EngineSpec(backend="pytorch-compile"), {"channels_last": "0"}
    engine = WatchedTorchEngine(compiled, artifact, spec, options, prepare=prepare, generated=code)
    engine.bind({"x": IMAGE.numpy()})
    profile = engine.profile_layers()
    told = [part for layer in profile.layers for part in layer.name.split(" + ")]
    assert set(LAYERS) <= set(told) and all(told.count(name) == 1 for name in LAYERS)
    assert generated.BETWEEN in told and GENERATED not in told
    assert {"block.conv1", "block.conv2"} <= {layer.name for layer in profile.layers}
    assert all(layer.mean_ns > 0 for layer in profile.layers if layer.name != generated.BETWEEN)
    marked = [name for wrapper in generated.list_wrappers() for name in vars(wrapper) if name.startswith("cpp_fused")]
    assert marked and "not what" not in profile.notes[0]
    assert not [value for wrapper in generated.list_wrappers() for value in vars(wrapper).values() if _is_marked(value)]


def _is_marked(value: Any) -> bool:
    return operators.WATCHED_KERNEL in str(getattr(value, "args", ""))


def test_nobody_listens_for_longer_than_a_compilation_and_what_was_heard_holds() -> None:
    before = list(logging.getLogger(generated.TRACE).handlers)
    code = GeneratedCode(Net(), fullgraph=True)
    with pytest.raises(ZeroDivisionError), code.listen():
        assert len(logging.getLogger(generated.TRACE).handlers) == len(before) + 1
        raise ZeroDivisionError
    assert logging.getLogger(generated.TRACE).handlers == before
    tell(GeneratedCode(torch.nn.Sequential(torch.nn.ReLU()).eval(), fullgraph=True), RELU)
    code = GeneratedCode(torch.nn.Sequential(torch.nn.ReLU()).eval(), fullgraph=True)
    named, why = code.name_layers([[Operator(GENERATED, 1.0, "cpp_fused_relu_0", GENERATED)]], [IMAGE])
    assert why is None and [one.name for one in named[0]] == ["0"]
    runs = [[Operator("", 1.0, "relu", "relu")]]
    assert GeneratedCode(torch.nn.Tanh(), fullgraph=True).name_layers(runs, [IMAGE]) == (runs, generated.UNTOLD)


RELU = {"cppCodeToPost": {"cpp_fused_relu_0:1": ["relu"]}, "postToPre": {"relu": ["input_1"]}}


def tell(code: GeneratedCode, *mappings: dict[str, Any]) -> None:
    """Says what the compiler says."""
    with code.listen():
        for mapping in mappings:
            metadata = {"artifact": {"name": generated.MAPPING}}
            logging.getLogger(generated.TRACE).debug("", extra={"metadata": metadata, "payload": json.dumps(mapping)})


@pytest.mark.parametrize(
    ("mappings", "ran", "why"),
    [
        ([RELU, RELU], "cpp_fused_relu_0", "the module was traced into 1 graphs and compiled into 2"),
        ([RELU], "cpp_fused_relu_7", "what ran is not what the compiler reported"),
    ],
)
def test_what_does_not_fit_is_not_joined(mappings: list[dict[str, Any]], ran: str, why: str) -> None:
    code = GeneratedCode(torch.nn.Sequential(torch.nn.ReLU()).eval(), fullgraph=True)
    tell(code, *mappings)
    runs = [[Operator(GENERATED, 1.0, ran, GENERATED)]]
    assert code.name_layers(runs, [IMAGE]) == (runs, why)


def test_a_module_that_cannot_be_traced_again_is_no_failure() -> None:
    class Spent(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            raise ValueError("once only")

    code = GeneratedCode(Spent(), fullgraph=True)
    tell(code, RELU)
    runs = [[Operator("", 1.0, "relu", "relu")]]
    named, why = code.name_layers(runs, [IMAGE])
    assert named == runs and why is not None and why.startswith("the module could not be traced again")


# A graph as a GPU's compiler told it: conv2's weight is laid out anew (`pack`) in the kernel that finishes the first
# block, and both kernels name conv2's producers, whose values were never stored.
GRAPH = {
    "conv1": TracedNode("conv1", ("x",), True),
    "bn1": TracedNode("bn1", ("conv1",), False),
    "relu1": TracedNode("relu: relu", ("bn1",), False),
    "conv2": TracedNode("conv2", ("relu1",), True),
    "bn2": TracedNode("bn2", ("conv2",), False),
    "add": TracedNode("add", ("bn2", "relu1"), False),
    "relu2": TracedNode("relu: relu 2", ("add",), False),
}
BEFORE = {name: [name] for name in GRAPH}


def settle(calls, graph=GRAPH, before=BEFORE) -> list[tuple[str, str]]:
    """(kernel, layer) of each call."""
    mapping = json.dumps({"cppCodeToPost": calls, "postToPre": before})
    return [(call.kernel, call.layer) for call in generated.name_calls(generated.read_calls(mapping), graph)]


def test_what_a_kernel_only_reads_is_not_its_work() -> None:
    assert settle(
        {
            "extern_kernels.convolution:1": ["conv1"],
            "triton_bn_relu:2": ["relu1", "bn1", "conv1"],
            "triton_pack:3": ["conv2", "relu1", "bn1", "conv1"],
            "extern_kernels.convolution:4": ["conv2", "relu1", "bn1"],
            "triton_last:5": ["relu2", "add", "bn2", "conv2", "relu1", "unknown"],
        }
    ) == [
        ("extern_kernels.convolution", "conv1"),
        ("triton_bn_relu", "bn1 + relu: relu"),
        ("triton_pack", "conv2"),
        ("extern_kernels.convolution", "conv2"),
        ("triton_last", "bn2 + add + relu: relu 2"),
    ]
    # A kernel that also lays out a later weight names all that this one's layer is for.
    assert settle(
        {
            "extern_kernels.convolution:1": ["conv1"],
            "cpp_relu_and_pack:2": ["relu1", "bn1", "conv1", "conv2", "bn2", "add"],
            "extern_kernels.convolution:3": ["conv2"],
            "cpp_last:4": ["relu2", "add", "bn2", "conv2"],
        }
    )[1::2] == [("cpp_relu_and_pack", "bn1 + relu: relu"), ("cpp_last", "bn2 + add + relu: relu 2")]
    assert settle(
        {
            "torch.ops.mkldnn._convolution_pointwise.default:1": ["relu1"],
            "torch.ops.mkldnn._convolution_pointwise_.binary:2": ["relu2"],
        }
    ) == [
        ("torch.ops.mkldnn._convolution_pointwise.default", "conv1 + bn1 + relu: relu"),
        ("torch.ops.mkldnn._convolution_pointwise_.binary", "conv2 + bn2 + add + relu: relu 2"),
    ]


def test_all_that_one_node_became_is_one_layer_and_nobody_guesses() -> None:
    """Attention is a single node of the trace; a library does its products, and a generated kernel what is between."""
    graph = {"attend": TracedNode("attention", ("x",), True), "add": TracedNode("add", ("attend",), False)}
    calls = {
        "extern_kernels.addmm:1": ["addmm"],
        "triton_softmax:2": ["softmax", "bmm"],
        "extern_kernels.bmm:3": ["bmm"],
        "triton_add:4": ["add", "bmm"],
    }
    before = {"addmm": ["attend"], "softmax": ["attend"], "bmm": ["attend"], "add": ["add"]}
    layers = [layer for _, layer in settle(calls, graph, before)]
    assert layers == ["attention", "attention", "attention", "add"]
    # Each layer of an LSTM is a call of its own.
    kernel = "torch.ops.mkldnn.mkldnn_rnn_layer.default"
    calls = {f"{kernel}:1": ["lstm"], f"{kernel}:2": ["lstm"], "extern_kernels.addmm:3": ["fc"]}
    graph = {"lstm": TracedNode("rnn: lstm", ("x",), True), "fc": TracedNode("fc", ("lstm",), True)}
    layers = [layer for _, layer in settle(calls, graph, {name: [name] for name in graph})]
    assert layers == ["rnn: lstm", "rnn: lstm", "fc"]
    calls = {"torch.ops.mkldnn._convolution_pointwise_.binary:1": ["relu2"], "cpp_other:2": []}
    graph = {**GRAPH, "relu1": TracedNode("relu", ("x",), False), "bn2": TracedNode("bn2", ("conv1", "conv2"), False)}
    assert [layer for _, layer in settle(calls, graph)] == ["", ""]


def kernels(*names: str) -> list[Operator]:
    return [Operator("fp16", 1.0, name, "kernel") for name in names]


CALLS = [
    NamedCall("triton_a", False, "a"),
    NamedCall("extern_kernels.convolution", True, "conv1"),
    NamedCall("extern_kernels.convolution", True, "conv2"),
    NamedCall("triton_b", False, "b"),
]


@pytest.mark.parametrize(
    ("ran", "layers"),
    [
        (["triton_a", "sgemm", "wgrad", "triton_b"], ["a", "conv1", "conv2", "b"]),
        (
            ["triton_a", "sgemm", "Memset (Device)", "wgrad", "triton_b"],
            ["a", "conv1", "Memset (Device)", "conv2", "b"],
        ),
        (["triton_a", "pack", "sgemm", "wgrad", "triton_b"], ["a", *3 * ["conv1 + conv2"], "b"]),
        (
            ["multi_tensor_apply_kernel", "triton_a", "triton_b", "copy"],
            ["multi_tensor_apply_kernel", "a", "b", "copy"],
        ),
        (["triton_b", "triton_a"], None),
        (["triton_a", "sgemm", "wgrad"], None),
        (["triton_a", "triton_b", "triton_b"], None),
    ],
)
def test_library_kernels_belong_to_the_calls_that_stand_where_they_ran(ran, layers) -> None:
    named = match_run(kernels(*ran), CALLS)
    assert (None if named is None else [one.name for one in named]) == layers


@pytest.mark.parametrize(
    ("ran", "layers"),
    [
        (["triton_a", "rnn_blocks", "rnn_bias", "triton_b"], ["a", "gru", "gru", "b"]),
        # How many of them are the eager layer's nobody says: as many kernels as calls are no proof.
        (["triton_a", "gemm", "rnn", "triton_b"], ["a", "gru", "gru", "b"]),
        (["triton_a", "rnn_blocks", "triton_b", "gemm", "rnn"], ["a", "gru", "b", *2 * ["fc"]]),
    ],
)
def test_what_runs_between_two_graphs_is_never_the_work_of_a_compiled_layer(ran: list[str], layers: list[str]) -> None:
    eager = NamedCall(generated.EAGER, True, "gru")
    calls = [NamedCall("triton_a", False, "a"), eager, NamedCall("triton_b", False, "b")]
    own = NamedCall("extern_kernels.addmm", True, "fc")
    named = match_run(kernels(*ran), [*calls, *([own] if "fc" in layers else [])])
    assert named is not None and [one.name for one in named] == layers
    shared = match_run(kernels("triton_a", "rnn", "gemm", "triton_b"), [calls[0], eager, own, calls[2]])
    assert shared is not None and [one.name for one in shared] == ["a", "gru + fc", "gru + fc", "b"]
    on_host = match_run([Operator("fp32", 1.0, "addmm", "addmm"), Operator("fp32", 1.0, "gru", "gru")], [eager, own])
    assert on_host is not None and [one.name for one in on_host] == ["fc", "gru"]


class Twice(torch.nn.Module):
    """Two graphs around a recurrent layer, in a module that is a graph of its own before and behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.RNN(4, 4, batch_first=True))

    def forward(self, x: Any) -> Any:
        return self.inner(x * 2)[0].tanh()


def test_layers_that_are_left_to_run_eagerly_are_named_where_they_run() -> None:
    module = Twice().eval()
    leave_recurrent(module)
    torch.compiler.reset()
    left: list[tuple[int, str]] = []
    graphs = generated.trace_modules(module, [torch.zeros(1, 2, 4)], fullgraph=False, left=left)
    assert left == [(len(graphs) - 1, "inner.1")] and len(graphs) >= 2
    assert [node.layer for node in graphs[-1].values()] == ["tanh"]


def test_a_renamed_kernel_and_operators_of_the_host_keep_their_names() -> None:
    named = match_run(kernels("triton_a", "sgemm", "wgrad", "triton_b"), CALLS)
    assert named is not None and named[1][2:] == ("conv1", "convolution", (), "sgemm")
    run = [Operator("", 1.0, "empty", "empty"), Operator("fp32", 1.0, "addmm", "addmm")]
    run.append(Operator(GENERATED, 1.0, GENERATED, "fused"))
    named = match_run(run, [NamedCall("extern_kernels.addmm", True, "fc")])
    assert named is not None and [one.name for one in named] == ["empty", "fc", generated.BETWEEN]


@pytest.mark.parametrize(
    ("said", "wrapped", "path"),
    [
        ("L['self'].layer1.0.conv1", "", "layer1.0.conv1"),
        ("L['self']._modules['layer1']._modules['0']", "", "layer1.0"),
        ("L['s']._module.fc", "_module.", "fc"),
        ("L['s']._module.module.fc.module", "_module.module.", "fc.module"),
        ("L['self'].module", "module.", ""),
        ("L['self'].module.fc", "", "module.fc"),
        ("L['self'].relu@1", "", "relu"),
        ("L['self']", "", ""),
    ],
)
def test_paths_are_those_of_named_modules(said: str, wrapped: str, path: str) -> None:
    assert generated.find_path({"outer": ("L['self'].other", None), "inner": (said, None)}, wrapped) == path
    assert generated.find_path({}) == generated.find_path(None) == ""


def test_modules_in_one_wrapper_keep_what_was_said_and_older_versions_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    relu, tanh = (Wrapped(make()).eval() for make in (torch.nn.ReLU, torch.nn.Tanh))
    first, second = (GeneratedCode(module, fullgraph=True) for module in (relu, tanh))
    (node,) = generated.trace_modules(relu, [IMAGE], fullgraph=True)[0]
    tell(first, RELU | {"postToPre": {"relu": [node]}})
    assert second.name_layers([[]], [IMAGE]) == ([[]], generated.UNTOLD)
    tell(second, {"cppCodeToPost": {"cpp_fused_tanh_0:1": ["tanh"]}, "postToPre": {"tanh": ["elsewhere"]}})
    named, why = first.name_layers([[Operator(GENERATED, 1.0, "cpp_fused_relu_0", GENERATED)]], [IMAGE])
    assert why is None and [one.name for one in named[0]] == ["function"]
    monkeypatch.setattr(f"{GeneratedCode.__module__}.inductor", SimpleNamespace(trace=SimpleNamespace()))
    code = GeneratedCode(torch.nn.Sigmoid(), fullgraph=True)
    tell(code, RELU)
    assert code.name_layers([], [IMAGE]) == ([], generated.UNTOLD)


def test_a_break_makes_two_graphs_with_the_paths_of_the_whole() -> None:
    class Broken(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            x = torch.relu(x)
            torch._dynamo.graph_break()
            return torch.relu(x - 1)

    graphs = generated.trace_modules(Broken(), [IMAGE], fullgraph=False)
    assert [[node.layer for node in graph.values()] for graph in graphs] == [["relu"], ["sub", "relu 2"]]

    # The model may have a module of the same name as its block has.
    class Broken(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            x = torch.relu(x)
            torch._dynamo.graph_break()
            return self.fc(x)

    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block, self.fc = Broken(), torch.nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            x = self.block(x)
            return self.fc(x)

    graphs = generated.trace_modules(Outer().eval(), [IMAGE], fullgraph=False)
    assert [node.layer for graph in graphs for node in graph.values()] == ["block: relu", "block.fc", "fc"]

    class Replaced(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.child = torch.nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            return torch.nn.functional.linear(x, self.child.weight)

    (graph,) = generated.trace_modules(torch.nn.Sequential(Replaced(), torch.nn.ReLU()).eval(), [IMAGE], fullgraph=True)
    assert [node.layer for node in graph.values()] == ["0", "1"]


# Kernels of a GPU, each under the module that launched it.

EVENTS = [
    make_event(WATCHED_MODULE, 0, 1000, "float"),
    make_event(f"{WATCHED_MODULE}conv", 10, 90, "float"),
    make_event("aten::conv2d", 20, 60, "float", number=1),
    make_event("aten::cudnn_convolution", 30, 40, "float", number=2),
    make_event("cudaLaunchKernel", 40, 5, "float", number=77, of=2),
    make_event("aten::relu", 110, 20, "float", number=3),
    make_event("aten::relu", 150, 20, "float", number=4),
    # The GPU is behind: it starts the first kernel when the host is at the last operator.
    make_event("nchwToNhwcKernel", 160, 5, "float", number=77, of=2, device="CUDA"),
    make_event(f"{WATCHED_MODULE}conv", 160, 60, "float", device="CUDA"),  # the host's span, as the profiler repeats it
    make_event("sgemm", 170, 50, "float", number=78, of=2, device="CUDA"),
    make_event("clamp", 230, 3, "float", number=79, of=3, device="CUDA"),
    make_event("clamp", 240, 3, "float", number=80, of=4, device="CUDA"),
    make_event("Memset (Device)", 250, 3, "float", number=81, device="CUDA"),
]
LAUNCHES = [
    Launch("nchwToNhwcKernel", "conv", "Conv2d"),
    Launch("sgemm", "conv", "Conv2d"),
    Launch("clamp", "relu", "relu"),
    Launch("clamp", "relu 2", "relu"),
    Launch("Memset (Device)", "Memset (Device)", "kernel"),
]


def test_kernels_belong_to_the_operator_that_launched_them() -> None:
    assert operators.read_launches(EVENTS, {"conv": "Conv2d"}) == LAUNCHES
    names = ["mkldnn::_convolution_pointwise", "torchvision::nms", "void at::native::copy<1>", "cudaLaunchKernel"]
    events = [make_event(name, 10 * i, 5, "float") for i, name in enumerate(names)]
    known = ("_convolution_pointwise", "nms")
    assert [(name, kind) for _, name, kind in list_outermost(events, {})] == [(name, name) for name in known]
    assert [one.dtype for one in operators.read_operator_times(events)] == ["fp32", "float"]
    names = ["aten::addmm", "aten::_int_mm", "aten::baddbmm_", "conv2d", "aten::lgamma", "aten::layer_norm", "add"]
    assert [name for name in names if operators.multiplies_matrices(name)] == names[:4]


def test_a_replay_is_named_after_the_launches_if_its_kernels_are_theirs() -> None:
    run = [Operator("fp32", float(i), launch.kernel, "kernel") for i, launch in enumerate(LAUNCHES)]
    named = name_kernels([run, run], LAUNCHES)
    assert named is not None and named[0] == named[1] and named[0][-1] == run[-1]
    assert [(one.name, one.kind, one.kernel, one.time_ns) for one in named[0]][1:3] == [
        ("conv", "Conv2d", "sgemm", 1.0),
        ("relu", "relu", "clamp", 2.0),
    ]
    run = [Operator("fp32", 1.0, launch.kernel, "kernel") for launch in LAUNCHES[:-1]]
    other = [run[0], Operator("reorder", 1.0, "memset32", "kernel"), *run[1:]]
    named = name_kernels([run, other], LAUNCHES)
    assert named is not None and [[one.name for one in run] for run in named] == [
        ["conv", "conv", "relu", "relu 2"],
        ["conv", "memset32", "conv", "relu", "relu 2"],
    ]
    run = [Operator("fp32", 1.0, launch.kernel, "kernel") for launch in LAUNCHES]
    assert (LAUNCHES[0].layer, LAUNCHES[1].layer, LAUNCHES[2].layer) == ("conv", "conv", "relu")
    named = name_kernels([[run[1], run[0], *run[2:]]], LAUNCHES)
    assert [(one.name, one.kernel) for one in named[0]][:2] == [("conv", run[1].name), ("conv", run[0].name)]
    assert name_kernels([[run[0], run[2], run[1], *run[3:]]], LAUNCHES) is None
    assert name_kernels([[*run, run[0]]], LAUNCHES) is None
    run = [Operator("fp32", 1.0, launch.kernel, "kernel") for launch in LAUNCHES]
    other = [run[0]._replace(name="winograd"), *run[1:]]
    assert name_kernels([run, other], LAUNCHES) is None
    assert name_kernels([run[:-2]], LAUNCHES) is None


class Encoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = torch.nn.Linear(8, 2)

    def forward(self, x: Any) -> Any:
        return self.head(self.layer(x))


def test_watching_modules_does_not_change_what_runs() -> None:
    """An encoder layer of PyTorch leaves its fast path where one of its modules has a hook; it is one operator."""
    module = Encoder().eval()
    modules = operators.name_modules(module)

    def run() -> None:
        with torch.inference_mode():
            module(torch.zeros(1, 4, 8))

    with operators.mark_modules(modules):
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in modules.values())
        runs = record_profile(run)
    names = [name for _, name, _ in list_outermost(runs[0], operators.describe_modules(modules))]
    assert "layer" in names and "head" in names
    assert not [name for name in names if name.startswith("layer.")]
    with torch.autograd.profiler.profile(use_kineto=True) as profiler:
        run()
    assert not [e for e in profiler.kineto_results.events() if e.name().startswith(WATCHED_MODULE)]


def test_a_module_with_more_than_one_operator_in_a_call_is_no_layer() -> None:
    events = [
        make_event(f"{WATCHED_MODULE}a", 0, 10, "float"),
        make_event("aten::add", 1, 2, "float"),
        make_event(f"{WATCHED_MODULE}b", 20, 30, "float"),
        make_event("aten::add", 21, 2, "float"),
        make_event(f"{WATCHED_MODULE}b.conv", 30, 10, "float"),
        make_event("aten::conv2d", 31, 2, "float"),
        make_event(f"{WATCHED_MODULE}a", 60, 10, "float"),
        make_event("aten::add", 61, 2, "float"),
    ]
    assert [name for _, name, _ in list_outermost(events, {"b.conv": "Conv2d"})] == ["a", "b: add", "b.conv", "a"]
