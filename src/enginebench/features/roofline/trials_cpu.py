"""Probes of a CPU's peaks through PyTorch: products and convolutions of oneDNN and MKL, reads and copies of memory."""

import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, cast

from msgspec.structs import replace

from enginebench.core.errors import importing
from enginebench.core.peaks import PeakKind
from enginebench.core.records import Precision
from enginebench.features.roofline.peaks import PeakProbe
from enginebench.measure.caches import DataCache

with importing("{}", 'pip install "enginebench[torch]"'):
    import torch

# Instructions that multiply in a precision, by the kernel's name of the CPU flag. Without any of them, libraries
# convert to FP32, whose rate is no peak of that precision. AVX2 multiplies bytes in pairs (VPMADDUBSW).
INSTRUCTIONS: dict[Precision, frozenset[str]] = {
    "fp32": frozenset(),
    "bf16": frozenset({"avx512_bf16", "amx_bf16", "bf16", "sme"}),
    "fp16": frozenset({"avx512_fp16", "amx_fp16", "asimdhp"}),
    "int8": frozenset({"avx2", "avx_vnni", "avx512_vnni", "amx_int8", "asimddp", "i8mm"}),
}
_DTYPES: dict[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# Small enough to finish within a quiet moment of a busy machine, large enough to occupy every core.
PRODUCTS = (256, 512, 1024)
# (channels in, channels out, height and width, kernel, batch): the middle of ResNets, where libraries are at their
# best.
CONVOLUTIONS = (
    *((64, 64, 56, 3, 1), (128, 128, 28, 3, 1), (256, 256, 14, 3, 1)),
    *((256, 256, 28, 1, 1), (128, 128, 28, 3, 4), (256, 256, 14, 3, 4)),
)
# One call reads so many bytes in total, by reading a small working set again and again.
READ_BYTES = 1 << 24
# A smaller working set is so short that the overhead of each pass over it shows.
LEAST_READ = 1 << 13
# A working set of so many last-level caches lies in memory. It has at least and at most so many bytes.
BEYOND_CACHE, LEAST_BEYOND, MOST_BEYOND = 4, 1 << 27, 1 << 30
# Fractions of a cache that a working set fills, since other processes use the cache, too. A working set that is not
# INNER times as large as the level before could fit into that one, and is left out.
FILLED = (0.0625, 0.125, 0.375, 0.75)
INNER = 1.5
_FLOAT = 4


def list_multiplied(flags: Collection[str]) -> tuple[Precision, ...]:
    return tuple(precision for precision, needed in INSTRUCTIONS.items() if not needed or needed.intersection(flags))


def list_cpu_probes(precisions: Sequence[Precision], caches: Sequence[DataCache], threads: int) -> Iterator[PeakProbe]:
    for precision in precisions:
        if precision == "int8":
            yield from _list_int8()
        elif precision in _DTYPES:
            yield from _list_products(precision)
            yield from _list_convolutions(precision)
    yield from _list_reads(caches, threads)
    yield PeakProbe(kind="call", call=lambda: None, work=1, method="a Python function that does nothing")


def _list_products(precision: Precision) -> Iterator[PeakProbe]:
    dtype = _DTYPES[precision]
    for n in PRODUCTS:
        a, b = torch.randn(n, n).to(dtype), torch.randn(n, n).to(dtype)
        out = torch.empty(n, n, dtype=dtype)
        call = partial(torch.mm, a, b, out=out)
        yield PeakProbe(kind="gemm", precision=precision, work=n**3, call=call, method=f"torch.mm {n}x{n}")


def _list_convolutions(precision: Precision) -> Iterator[PeakProbe]:
    for shape in CONVOLUTIONS:
        inner, outer, size, kernel, batch = shape
        pad = kernel // 2
        x = torch.randn(batch, inner, size, size).to(_DTYPES[precision]).contiguous(memory_format=torch.channels_last)
        w = torch.randn(outer, inner, kernel, kernel).to(_DTYPES[precision])
        yield from _try_convolution(precision, shape, "torch.conv2d", partial(torch.conv2d, x, w, None, 1, pad))
        if packed := _pack_convolution(x, w, pad):
            yield from _try_convolution(precision, shape, "oneDNN, weights packed", packed)


def _try_convolution(
    precision: Precision, shape: tuple[int, int, int, int, int], method: str, call: Callable[[], object]
) -> Iterator[PeakProbe]:
    """Yield the probe of a convolution; a 1x1 convolution is a probe of matrix products, too."""
    inner, outer, size, kernel, batch = shape
    method = f"{method}, {kernel}x{kernel}, {inner} to {outer} channels, {size}x{size}, batch {batch}"
    work = batch * outer * inner * kernel**2 * size**2
    trial = PeakProbe(kind="conv", precision=precision, work=work, call=call, method=method)
    yield trial
    if kernel == 1:
        yield replace(trial, kind="gemm")


def _pack_convolution(x: Any, w: Any, pad: int) -> Any:
    """Return a convolution with weights packed ahead by oneDNN, as compilers do; None if this build cannot do it."""
    try:
        sizes = ([pad, pad], [1, 1], [1, 1], 1)
        packed = torch._C._nn.mkldnn_reorder_conv2d_weight(w.to_mkldnn(), *sizes, list(x.shape))
        operator = torch.ops.mkldnn._convolution_pointwise
        operator(x, packed, None, *sizes, "none", [], "")
    except (RuntimeError, AttributeError, TypeError):
        return None
    return lambda: operator(x, packed, None, *sizes, "none", [], "")


def _list_int8() -> Iterator[PeakProbe]:
    """Yield products and convolutions of unsigned activations and signed weights, by each INT8 library available."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # these constructors are deprecated; the operators behind them are not
        for library in torch.backends.quantized.supported_engines:
            if library not in ("none", "qnnpack"):
                torch.backends.quantized.engine = library
                yield from _list_int8_of(library)


def _list_int8_of(library: str) -> Iterator[PeakProbe]:
    for shape in CONVOLUTIONS:
        inner, outer, size, kernel, batch = shape
        pad = kernel // 2
        x = _quantize(batch, inner, size, size).contiguous(memory_format=torch.channels_last)
        w = _quantize(outer, inner, kernel, kernel, dtype=torch.qint8)
        packed = torch.ops.quantized.conv2d_prepack(w, None, [1, 1], [pad, pad], [1, 1], 1)
        yield from _try_convolution("int8", shape, library, partial(torch.ops.quantized.conv2d, x, packed, 1.0, 64))
    for n in PRODUCTS:
        x, packed = _quantize(n, n), torch.ops.quantized.linear_prepack(_quantize(n, n, dtype=torch.qint8), None)
        call, method = partial(torch.ops.quantized.linear, x, packed, 1.0, 64), f"{library}, linear {n}x{n}"
        yield PeakProbe(kind="gemm", precision="int8", work=n**3, call=call, method=method)


def _quantize(*shape: int, dtype: Any = torch.quint8) -> Any:
    return torch.quantize_per_tensor(torch.randn(*shape), 0.05, 64 if dtype == torch.quint8 else 0, dtype)


def _list_reads(caches: Sequence[DataCache], threads: int) -> Iterator[PeakProbe]:
    """Yield reads of working sets that fit into each cache, and reads and copies of one that fits into none."""
    inner = 0
    for cache in caches:
        for share in FILLED:
            size = int(share * cache.size_bytes)
            if size > INNER * inner and size >= LEAST_READ:
                yield from _list_small_reads(cache, size, cache.count_bytes(threads))
        inner = cache.size_bytes
    last = caches[-1].count_bytes(threads) if caches else 0
    size = min(MOST_BEYOND, max(LEAST_BEYOND, BEYOND_CACHE * last))
    x, y = torch.ones(size // _FLOAT), torch.empty(size // _FLOAT)
    label = f"of {size >> 20} MiB"
    yield PeakProbe(kind="memory", work=size, call=x.sum, method=f"sum {label}")
    yield PeakProbe(kind="memory", work=size, call=x.amax, method=f"maximum {label}")
    yield PeakProbe(kind="memory", work=2 * size, call=lambda: y.copy_(x), method=f"copy {label}")
    yield PeakProbe(kind="memory", work=size, call=lambda: y.fill_(1.0), method=f"fill {label}")


def _list_small_reads(cache: DataCache, size: int, capacity: int) -> Iterator[PeakProbe]:
    """Yield calls that read the same bytes many times, through a view whose rows are all the same line."""
    n, times = size // _FLOAT, max(1, READ_BYTES // size)
    line = torch.ones(n)
    view, label = line.expand(times, n), f"of {size >> 10} KiB"
    make = partial(PeakProbe, kind=cast("PeakKind", f"l{min(cache.level, 4)}"), capacity_bytes=capacity)
    yield make(work=times * size, call=lambda: view.sum(1), method=f"sum {label}, {times} times")
    yield make(work=times * size, call=lambda: view.amax(1), method=f"maximum {label}, {times} times")
    if size >= 1 << 17:  # below this a call costs more than what it copies
        x, y = torch.ones(n // 2), torch.empty(n // 2)
        yield make(work=size, call=lambda: y.copy_(x), method=f"copy of {size >> 11} KiB")
