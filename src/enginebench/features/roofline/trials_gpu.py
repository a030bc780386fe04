"""Probes of a GPU's peaks through PyTorch: cuBLAS, cuDNN, copies, and kernels that do nothing."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from enginebench.core.errors import importing
from enginebench.core.peaks import PeakKind
from enginebench.core.records import Precision
from enginebench.features.roofline.peaks import PeakProbe, Timer

with importing("{}", 'pip install "enginebench[torch]"'):
    import torch

PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "fp16", "bf16", "int8", "fp8")
_DTYPES: dict[str, torch.dtype] = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
PRODUCTS = (2048, 4096, 8192)
# (channels, height and width, kernel, batch): those of ResNets at the batches where GPUs are at their best.
CONVOLUTIONS = ((64, 56, 3, 64), (128, 28, 3, 128), (256, 14, 3, 256), (512, 7, 3, 256), (256, 56, 1, 64))
QUICK_CONVOLUTIONS = 3
# A working set larger than any cache; and the fractions of the cache that a working set in it fills.
BEYOND_CACHE_BYTES = 1 << 30
FILLED = (0.25, 0.5)
# Kernels in one graph: enough that its own launch does not show in the time of each.
KERNELS = 1000
_FLOAT = 4


@contextmanager
def allow_tf32(allowed: bool) -> Iterator[None]:
    """Allow or forbid TF32 in FP32 products and convolutions within the block."""
    before = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def make_timer(device: str) -> Timer:
    """Return a timer by the device's own clock: events around the calls exclude launches that overlap with work."""

    def time_events(call: Callable[[], object], count: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(count):
            call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    torch.cuda.set_device(device)
    return time_events


def list_gpu_probes(precisions: Sequence[Precision], *, quick: bool = False) -> Iterator[PeakProbe]:
    """Yield the probes of the current GPU that its own clock times, if this GPU and this build of PyTorch run them.

    `quick` uses fewer shapes, since cuDNN tries every algorithm on each.
    """
    torch.backends.cudnn.benchmark = True  # the fastest algorithm, Winograd among them, is found by trying
    for precision in precisions:
        yield from filter(_runs, _list_products(precision))
        yield from filter(_runs, _list_convolutions(precision, CONVOLUTIONS[: QUICK_CONVOLUTIONS if quick else None]))
    yield from _list_reads()
    method = f"an empty kernel, one of {KERNELS} in a graph"
    yield PeakProbe(kind="kernel", call=capture(KERNELS).replay, work=KERNELS, method=method)


def list_host_trials() -> Iterator[PeakProbe]:
    """Yield probes of launch costs by the host's clock, with the wait: an empty kernel, and a graph of one."""

    def launch() -> None:
        torch.cuda._sleep(0)
        torch.cuda.synchronize()

    graph = capture(1)

    def replay() -> None:
        graph.replay()
        torch.cuda.synchronize()

    yield PeakProbe(kind="call", call=launch, work=1, method="an empty kernel, launched and waited for")
    yield PeakProbe(kind="graph", call=replay, work=1, method="a graph of one empty kernel, launched and waited for")


def capture(kernels: int) -> Any:
    """Return a CUDA graph of so many empty kernels, one after the other."""
    torch.cuda._sleep(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(kernels):
            torch.cuda._sleep(0)
    return graph


def _runs(trial: PeakProbe) -> bool:
    """Return whether the GPU and this build of PyTorch can run a probe."""
    try:
        trial.call()
        torch.cuda.synchronize()
    except (RuntimeError, ValueError):  # no kernel for it, or no memory; precisions without a probe are reported later
        return False
    return True


def _list_products(precision: Precision) -> Iterator[PeakProbe]:
    for n in PRODUCTS:
        if (call := _make_product(precision, n)) is not None:
            yield PeakProbe(kind="gemm", precision=precision, work=n**3, call=call, method=f"{precision} {n}x{n}")


def _make_product(precision: Precision, n: int) -> Callable[[], object] | None:
    if precision == "int8":
        a, b = (torch.randint(-128, 127, (n, n), dtype=torch.int8, device="cuda") for _ in range(2))
        return lambda: torch._int_mm(a, b.t())
    if precision == "fp8":
        kind = getattr(torch, "float8_e4m3fn", None)
        if kind is None or not hasattr(torch, "_scaled_mm"):
            return None
        a, b = (torch.randn(n, n, device="cuda").to(kind) for _ in range(2))
        one = torch.ones((), device="cuda")
        return lambda: torch._scaled_mm(
            a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
        )
    a, b = (torch.randn(n, n, device="cuda", dtype=_DTYPES[precision]) for _ in range(2))
    out = torch.empty_like(a)
    return _set_tf32(precision, lambda: torch.mm(a, b, out=out))


def _set_tf32(precision: Precision, call: Callable[[], object]) -> Callable[[], object]:
    """Return the call with TF32 allowed or forbidden around it; setting it costs less than a launch."""
    if precision not in ("fp32", "tf32"):
        return call

    def run() -> object:
        with allow_tf32(precision == "tf32"):
            return call()

    return run


def _list_convolutions(precision: Precision, shapes: Sequence[tuple[int, int, int, int]]) -> Iterator[PeakProbe]:
    if precision not in _DTYPES:  # PyTorch has no such convolution; a 1x1 one is a product
        return
    for channels, size, kernel, batch in shapes:
        pad = kernel // 2
        x = torch.randn(batch, channels, size, size, device="cuda", dtype=_DTYPES[precision])
        w = torch.randn(channels, channels, kernel, kernel, device="cuda", dtype=_DTYPES[precision])
        x, w = (t.contiguous(memory_format=torch.channels_last) for t in (x, w))
        work, call = batch * channels**2 * kernel**2 * size**2, partial(torch.conv2d, x, w, None, 1, pad)
        method = f"{precision} {kernel}x{kernel}, {channels} channels, {size}x{size}, batch {batch}"
        yield PeakProbe(kind="conv", precision=precision, work=work, call=_set_tf32(precision, call), method=method)


def _list_reads() -> Iterator[PeakProbe]:
    cache = int(getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "L2_cache_size", 0))
    for share in FILLED if cache else ():
        yield from _list_reads_of("l2", int(share * cache), cache)
    free, _ = torch.cuda.mem_get_info()
    yield from _list_reads_of("memory", min(BEYOND_CACHE_BYTES, free // 8), None)


def _list_reads_of(kind: PeakKind, size: int, capacity: int | None) -> Iterator[PeakProbe]:
    """Yield reads, copies and writes of a working set of `size` bytes; reads are repeated within one call."""
    n = size // _FLOAT
    line, x, y = (torch.ones(count, device="cuda") for count in (n, n // 2, n // 2))
    times = max(1, (1 << 30) // size)
    view, label = line.expand(times, n), f"of {size >> 20} MiB"
    make = partial(PeakProbe, kind=kind, capacity_bytes=capacity)
    yield make(work=times * size, call=lambda: view.sum(1), method=f"sum {label}, {times} times")
    yield make(work=times * size, call=lambda: view.amax(1), method=f"maximum {label}, {times} times")
    yield make(work=size, call=lambda: y.copy_(x), method=f"copy {label}")
    yield make(work=size // 2, call=lambda: y.fill_(1.0), method=f"fill {label}")
