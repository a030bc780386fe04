"""What a person reaches by hand on one NVIDIA GPU: torch.compile, captured once in one CUDA graph, and replayed.

    python benchmarks/by_hand.py --case resnet50-b32

It imports nothing of EngineBench, so that what `tune` finds has an independent figure beside it. Random weights from a
seed; FP32 inputs and outputs, the casts are timed, too. One JSON line for each way: the median of 200 replays by CUDA
events, the same by the host's clock, seconds to build, and the largest difference from FP32 over the largest output.

The claims of docs/gpu.md and docs/tune.md rest on this.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

REPLAYS = 200
WARM_CALLS = 5
# No way begins later than this after the start, so that a case ends within a minute.
LAST_START_S = 40.0

Case = tuple[Callable[[], Any], Callable[[int], tuple[Any, ...]], int, list[dict[str, Any]]]


class Cast(torch.nn.Module):
    """A module in a shorter type, with FP32 on the way in and out."""

    def __init__(self, module: Any, dtype: Any) -> None:
        super().__init__()
        self.module, self.dtype = module.to(dtype), dtype

    def forward(self, *inputs: Any) -> Any:
        answer = self.module(*(x.to(self.dtype) if x.is_floating_point() else x for x in inputs))
        return (answer if isinstance(answer, torch.Tensor) else answer[0]).float()


def make_resnet50() -> Any:
    from torchvision.models import resnet50

    return resnet50(weights=None)


def make_vit() -> Any:
    try:
        import timm
    except ImportError:
        from torchvision.models import vit_b_16

        return vit_b_16(weights=None)
    return timm.create_model("vit_base_patch16_224", pretrained=False)


def make_bert() -> Any:
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig(return_dict=False))


def make_images(batch: int) -> tuple[Any, ...]:
    return (torch.randn(batch, 3, 224, 224),)


def make_tokens(batch: int) -> tuple[Any, ...]:
    return (torch.randint(0, 30522, (batch, 128)),)


CONVOLUTIONS = [
    {"precision": "fp16", "channels_last": True, "fold": True},
    {"precision": "fp16", "channels_last": True, "freezing": True},
    {"precision": "bf16", "channels_last": True, "fold": True},
    {"precision": "fp16", "channels_last": True, "fold": True, "mode": "reduce-overhead"},
    {"precision": "fp16", "channels_last": True, "fold": True, "eager": True},
]
ATTENTION = [
    {"precision": "bf16"},
    {"precision": "fp16"},
    {"precision": "bf16", "mode": "reduce-overhead"},
    {"precision": "fp16", "eager": True},
]
CASES: dict[str, Case] = {
    "resnet50-b32": (make_resnet50, make_images, 32, CONVOLUTIONS),
    "resnet50-b1": (make_resnet50, make_images, 1, CONVOLUTIONS),
    "vit-b32": (make_vit, make_images, 32, ATTENTION),
    "bert-b1": (make_bert, make_tokens, 1, ATTENTION),
    "bert-b16": (make_bert, make_tokens, 16, ATTENTION),
}


def capture(call: Callable[..., Any], inputs: tuple[Any, ...]) -> tuple[Callable[[], None], Any]:
    """(a replay, its output) of one graph of a call, after calls on a side stream."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_CALLS):
            call(*inputs)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        answer = call(*inputs)
    return graph.replay, answer


def build(way: dict[str, Any], make: Callable[[], Any], inputs: tuple[Any, ...]) -> tuple[Callable[[], None], Any]:
    """(a call on `inputs`, a function that gives its last output)."""
    import torch._inductor.config as inductor
    from torch.fx.experimental.optimization import fuse

    torch._dynamo.reset()
    inductor.freezing = way.get("freezing", False)
    torch.manual_seed(0)
    module = make().eval()
    if way.get("fold"):
        module = fuse(module)
    module = Cast(module, {"fp16": torch.float16, "bf16": torch.bfloat16}[way["precision"]]).cuda()
    if way.get("channels_last"):
        module = module.to(memory_format=torch.channels_last)
    if way.get("mode"):
        trees = torch.compile(module, mode=way["mode"], dynamic=False, fullgraph=True)
        last: list[Any] = []

        def run() -> None:
            last[:] = [trees(*inputs)]

        for _ in range(WARM_CALLS):
            run()
        return run, lambda: last[0]
    call = module if way.get("eager") else torch.compile(module, dynamic=False, fullgraph=True)
    replay, answer = capture(call, inputs)
    return replay, lambda: answer


def time_calls(call: Callable[[], None]) -> tuple[float, float]:
    """Median milliseconds of a call: by CUDA events around each, and by the host's clock until the GPU is done."""
    for _ in range(20):
        call()
    torch.cuda.synchronize()
    device, host = [], []
    for _ in range(REPLAYS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin = time.perf_counter()
        start.record()
        call()
        end.record()
        while not end.query():
            pass
        host.append(1000 * (time.perf_counter() - begin))
        device.append(start.elapsed_time(end))
    return statistics.median(device), statistics.median(host)


def measure(case: str, begin: float) -> Iterator[dict[str, Any]]:
    make, draw, batch, ways = CASES[case]
    torch.manual_seed(0)
    plain = make().eval().cuda()
    torch.manual_seed(1)
    inputs, others = ([x.cuda() for x in draw(batch)] for _ in range(2))
    truth = plain(*others)
    truth = truth if isinstance(truth, torch.Tensor) else truth[0]
    del plain
    for way in ways:
        if time.perf_counter() - begin > LAST_START_S:
            return
        start = time.perf_counter()
        own = [x.contiguous(memory_format=torch.channels_last) if way.get("channels_last") else x for x in inputs]
        own = [x.clone() for x in own]
        call, find = build(way, make, tuple(own))
        built_s = time.perf_counter() - start
        device_ms, host_ms = time_calls(call)
        for x, other in zip(own, others, strict=True):  # other inputs than those of the capture
            x.copy_(other)
        call()
        torch.cuda.synchronize()
        error = float((find() - truth).abs().max() / truth.abs().max())
        times = {"device_ms": round(device_ms, 4), "host_ms": round(host_ms, 4), "build_s": round(built_s, 1)}
        yield {"case": case, **way, **times, "error": float(f"{error:.2g}")}


def main() -> None:
    begin = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=CASES, required=True)
    case = parser.parse_args().case
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    print(json.dumps({"case": case, "torch": torch.__version__, "gpu": torch.cuda.get_device_name()}), flush=True)
    with torch.no_grad():
        for line in measure(case, begin):
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
