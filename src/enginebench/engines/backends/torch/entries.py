"""Entries of the engines that run PyTorch modules. PyTorch is not imported here."""

from typing import Any

from enginebench.core.entry import Builder, Entry, Family, OnDevice, choice, switch
from enginebench.core.records import Precision
from enginebench.engines.verified import CPU_VERIFIED, FORCE, GPU_VERIFIED

CPU_PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "bf16")
CUDA_PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "fp16", "bf16")
MODULE_OPTIONS = {
    "channels_last": switch("images and weights with their channels last", tried=True),
    "fold_bn": switch(
        "1 folds batch norms into the convolutions or linear layers before them, in FP32, before anything else",
        tried=True,
    ),
    "cast": choice(
        "module|autocast",
        "BF16 and FP16: the whole module, or by torch.autocast only what it deems safe",
        search="autocast",
        only_in=("bf16", "fp16"),
    ),
}
CPU_OPTIONS = {**MODULE_OPTIONS, "force": FORCE}
CUDA_OPTIONS = {
    **MODULE_OPTIONS,
    "autotune": switch("cuDNN tries its kernels and keeps the fastest", tried=True),
    "defaults": switch("PyTorch's own tf32: in convolutions, not in matrix products"),
    "wait": choice(
        "spin|driver|block",
        "how to wait for the GPU: spinning, the driver's choice, or sleeping",
        search="driver",
        timing_only=True,
    ),
}
COMPILE_OPTIONS = {
    # Graph trees took 1.05 to 1.42 times as long as a graph of our own, in each of five models on an H200.
    "mode": choice(
        "default|reduce-overhead|max-autotune",
        "as in torch.compile; reduce-overhead adds its CUDA-graph trees, max-autotune can take many minutes",
        search="max-autotune",
        dear=("max-autotune",),
    ),
    "freezing": switch(
        "1 makes weights constants of the compiled code, so that batch norms fold into convolutions", tried=True
    ),
    "fullgraph": switch("0 lets parts that cannot be compiled run eagerly, without a message", on=True),
    "rnn": choice(
        "eager|unroll",
        "LSTM, GRU and RNN by PyTorch's own kernels, or compiled with a copy of their code for each step",
    ),
}
CUDA_GRAPH = switch("1 captures compiled code in one CUDA graph; refused where the host reads a tensor", tried=True)
FOLDED, GRAPH = {"channels_last": "1", "fold_bn": "1"}, {"cuda_graph": "1"}
SCALES = choice(
    "row|tensor",
    "FP8: scales per row of a linear layer's input and weights, or per tensor",
    search="tensor",
    only_in=("fp8",),
    recipes=("dynamic",),
)

# A loop in Python that asks whether the GPU is done would keep the interpreter from the other streams.
LET_OTHERS_WORK = {"wait": "driver"}
COMPILED_WELL: dict[Family, dict[str, str]] = {
    "convolutions": {"channels_last": "1", "freezing": "1"},
    "transformers": {"freezing": "1"},
}
COMPILED_WELL_ON_GPUS: dict[Family, dict[str, str]] = {
    "convolutions": {**FOLDED, **GRAPH},
    "transformers": GRAPH,
    "recurrent": GRAPH,
}
TORCH: dict[str, Any] = {"distributions": ("torch",), "extra": "torch", "packages": ("torch", "torchvision")}

PYTORCH = Entry(
    name="pytorch",
    axes="open",
    module="enginebench.engines.backends.torch.pytorch",
    takes="torch",
    precisions=CPU_PRECISIONS,
    options=CPU_OPTIONS,
    chooses_threads=("cpu",),
    on={
        "cpu": OnDevice(any_batch=True, default={}, for_shapes=({},)),
        "cuda": OnDevice(
            precisions=CUDA_PRECISIONS, options=CUDA_OPTIONS, overlaps=True, default={}, beside_itself=LET_OTHERS_WORK
        ),
    },
    **TORCH,
    verified_on=f"PyTorch 2.13.0+cpu, {CPU_VERIFIED}; PyTorch 2.11.0+cu130, {GPU_VERIFIED}",
)
PYTORCH_COMPILE = Entry(
    name="pytorch-compile",
    axes="fixed",
    module="enginebench.engines.backends.torch.pytorch_compile",
    builder=Builder(kept_with={}, tunes=True),
    takes="torch",
    precisions=(*CPU_PRECISIONS, "int8"),
    chooses_threads=("cpu",),
    options={**COMPILE_OPTIONS, **CPU_OPTIONS},
    on={
        "cpu": OnDevice(default={}, known_good=COMPILED_WELL),
        "cuda": OnDevice(
            precisions=(*CUDA_PRECISIONS, "int8", "fp8"),
            options={**COMPILE_OPTIONS, "cuda_graph": CUDA_GRAPH, "scales": SCALES, **CUDA_OPTIONS},
            overlaps=True,
            default={"cuda_graph": "1"},
            known_good=COMPILED_WELL_ON_GPUS,
            beside_itself=LET_OTHERS_WORK,
        ),
    },
    **TORCH,
    verified_on=f"PyTorch 2.13.0+cpu, g++ 12.2, {CPU_VERIFIED}; PyTorch 2.11.0+cu130, {GPU_VERIFIED}",
)
PYTORCH_AOTI = Entry(
    name="pytorch-aoti",
    axes="fixed",
    module="enginebench.engines.backends.torch.pytorch_aoti",
    builder=Builder(kept_with={}, tunes=True),
    takes="torch",
    also_takes=("aoti",),
    precisions=CPU_PRECISIONS,
    chooses_threads=("cpu",),
    options={"freezing": COMPILE_OPTIONS["freezing"], **CPU_OPTIONS},
    on={
        "cpu": OnDevice(known_good=COMPILED_WELL),
        "cuda": OnDevice(
            precisions=CUDA_PRECISIONS,
            options={"freezing": COMPILE_OPTIONS["freezing"], "cuda_graph": CUDA_GRAPH, **CUDA_OPTIONS},
            known_good=COMPILED_WELL_ON_GPUS,
            beside_itself=LET_OTHERS_WORK,
        ),
    },
    **TORCH,
    verified_on=f"PyTorch 2.13.0+cpu, g++ 12.2, {CPU_VERIFIED}; on an H200 with PyTorch 2.11 it crashed",
)
PYTORCH_CUDAGRAPH = Entry(
    name="pytorch-cudagraph",
    axes="fixed",
    module="enginebench.engines.backends.torch.pytorch_cudagraph",
    takes="torch",
    precisions=CUDA_PRECISIONS,
    options=CUDA_OPTIONS,
    device="cuda:0",
    on={
        "cuda": OnDevice(overlaps=True, default={}, known_good={"convolutions": FOLDED}, beside_itself=LET_OTHERS_WORK)
    },
    **TORCH,
    verified_on=f"PyTorch 2.11.0+cu130, {GPU_VERIFIED}",
)
