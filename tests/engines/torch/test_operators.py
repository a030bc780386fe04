"""Kernels of a GPU, each under the module that launched it."""

from typing import Any

import torch

from enginebench.engines.backends.torch.operators import (
    WATCHED_MODULE,
    Launch,
    describe_modules,
    is_product,
    list_outermost,
    mark_modules,
    name_kernels,
    name_modules,
    read_launches,
    read_operator_times,
)
from enginebench.engines.proof import Operator, record_profile
from events import make_event

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


def test_kernels_belong_to_the_operator_that_launched_them_not_to_the_one_at_their_time() -> None:
    assert read_launches(EVENTS, {"conv": "Conv2d"}) == LAUNCHES


def test_operators_of_any_library_count_and_nothing_else_does() -> None:
    names = ["mkldnn::_convolution_pointwise", "torchvision::nms", "void at::native::copy<1>", "cudaLaunchKernel"]
    events = [make_event(name, 10 * i, 5, "float") for i, name in enumerate(names)]
    assert [(name, kind) for _, name, kind in list_outermost(events, {})] == [
        ("_convolution_pointwise", "_convolution_pointwise"),
        ("nms", "nms"),
    ]
    assert [one.dtype for one in read_operator_times(events)] == ["fp32", "float"]


def test_operators_that_multiply_are_known_by_name() -> None:
    names = ["aten::addmm", "aten::_int_mm", "aten::baddbmm_", "conv2d", "aten::lgamma", "aten::layer_norm", "add"]
    assert [name for name in names if is_product(name)] == names[:4]


def test_a_replay_is_named_after_the_launches_one_by_one() -> None:
    run = [Operator("fp32", float(i), launch.kernel, "kernel") for i, launch in enumerate(LAUNCHES)]
    named = name_kernels([run, run], LAUNCHES)
    assert named is not None and named[0] == named[1] and named[0][-1] == run[-1]
    assert [(one.name, one.kind, one.kernel, one.time_ns) for one in named[0]][1:3] == [
        ("conv", "Conv2d", "sgemm", 1.0),
        ("relu", "relu", "clamp", 2.0),
    ]


def test_memory_is_cleared_under_another_name_in_a_graph_or_not_at_all() -> None:
    run = [Operator("fp32", 1.0, launch.kernel, "kernel") for launch in LAUNCHES[:-1]]
    other = [run[0], Operator("reorder", 1.0, "memset32", "kernel"), *run[1:]]
    named = name_kernels([run, other], LAUNCHES)
    assert named is not None and [[one.name for one in run] for run in named] == [
        ["conv", "conv", "relu", "relu 2"],
        ["conv", "memset32", "conv", "relu", "relu 2"],
    ]


def test_the_kernels_of_one_layer_may_change_their_order_in_a_replay_and_no_others() -> None:
    run = [Operator("fp32", 1.0, launch.kernel, "kernel") for launch in LAUNCHES]
    assert (LAUNCHES[0].layer, LAUNCHES[1].layer, LAUNCHES[2].layer) == ("conv", "conv", "relu")
    named = name_kernels([[run[1], run[0], *run[2:]]], LAUNCHES)
    assert named is not None and [(one.name, one.kernel) for one in named[0]][:2] == [
        ("conv", run[1].name),
        ("conv", run[0].name),
    ]
    assert name_kernels([[run[0], run[2], run[1], *run[3:]]], LAUNCHES) is None
    assert name_kernels([[*run, run[0]]], LAUNCHES) is None


def test_a_replay_of_other_kernels_is_not_named() -> None:
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
    modules = name_modules(module)

    def run() -> None:
        with torch.inference_mode():
            module(torch.zeros(1, 4, 8))

    with mark_modules(modules):
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in modules.values())
        runs = record_profile(run)
    names = [name for _, name, _ in list_outermost(runs[0], describe_modules(modules))]
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
