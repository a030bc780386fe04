"""Static recipes of PyTorch modules: `int8@pt2e` by torchao for x86 kernels, `fp8@static` for GPUs' matrix units."""

import copy
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace as change
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace
from torch import nn

from enginebench.core.errors import ModelError, explaining, importing
from enginebench.core.feeds import random_feeds
from enginebench.core.recipes import STEP, TORCHAO
from enginebench.core.records import Artifact, Recipe
from enginebench.core.shapes import find_own_batch, takes_whole
from enginebench.core.store import hash_files
from enginebench.core.text import first_line
from enginebench.core.warnings import make_warning
from enginebench.models.precision.calibration import check_preprocess
from enginebench.models.precision.calibration_data import CalibrationData
from enginebench.models.torch.export import add_batch, describe_dynamic, quiet_exporter, set_batch_axes, to_tensors
from enginebench.models.torch.flat import Flat
from enginebench.models.torch.source import load_module, read_state_names

# Products with weights: the layers that the quantizer knows, and bare ones with a constant side, which stay in floats.
_PRODUCTS = re.compile(r"^aten\.(?:(conv|linear)|matmul|b?mm|addb?mm|baddbmm|einsum)")
LOW_COVERAGE = 0.5
FP8 = torch.finfo(torch.float8_e4m3fn)
SMALLEST = torch.finfo(torch.float32).tiny  # of scales: one that is 0 divides nothing
# Modules that multiply by weights of their own.
_WEIGHTED = (nn.Linear, nn.modules.conv._ConvNd, nn.RNNBase, nn.MultiheadAttention)


def import_pt2e() -> None:
    """Make the operators of quantized modules known to PyTorch."""
    with importing("torchao", TORCHAO), quiet_exporter():
        import torchao.quantization.pt2e.quantize_pt2e  # noqa: F401


def quantize_module(
    artifact: Artifact, recipe: Recipe | None, data: CalibrationData, out: Path, method: str, threads: int
) -> Artifact:
    """The module with its linear layers, and in `pt2e` its convolutions, in eight bits: an exported program in `out`.

    Args:
        method: of the ranges of `pt2e`: `minmax`; any other is torchao's own, which cuts a histogram where that costs
            least.
    """
    static = recipe == "static"
    if not static:
        import_pt2e()
    check_preprocess(data, artifact.model, artifact.preprocess_sha256)
    if read_state_names(artifact.warnings):
        raise ModelError(f"{artifact.model} keeps a state in its buffers, which a quantized module would lose")
    torch.set_num_threads(threads)
    if data.n < ((own := find_own_batch(artifact)) or 1) and not data.apart:
        raise ModelError(f"{artifact.model} takes {own} entries in a call, and {data.source} has {data.n} for ranges")
    is_dynamic = not own and not takes_whole(artifact.inputs)
    inputs = set_batch_axes(artifact.inputs, own or 2)  # the exporter takes an axis of length 1 for a fixed one
    examples, names = to_tensors(random_feeds(inputs, 1, seed=0), inputs), [spec.name for spec in inputs]
    failing = explaining(ModelError, f"{artifact.model} cannot be quantized by {recipe}", describe=first_line)
    with failing, torch.no_grad(), quiet_exporter():
        module: Any = load_module(artifact)
        samples = (
            tuple(torch.from_numpy(feeds[name]) for name in names)
            for feeds in data.batches(own or 1)
            if len(feeds[names[0]]) == (own or 1) or data.apart
        )
        if static:
            made, share = _to_fp8(module, artifact, samples)
        else:
            shapes = describe_dynamic(module, inputs, add_batch(inputs, {})) if is_dynamic else None
            # Strict: a module that is called several times has a name for each call; the quantizer asks for it.
            program = torch.export.export(module, examples, dynamic_shapes=shapes, strict=True)
            made = _to_int8(program.module(), samples, method)
            share = _read_coverage(made, artifact.model)
        shapes = describe_dynamic(made, inputs, add_batch(inputs, {})) if is_dynamic else None
        torch.export.save(torch.export.export(made, examples, dynamic_shapes=shapes), out)
    sha256, files = hash_files([out], out.parent)
    covered = f"have inputs and weights in {'FP8' if static else 'INT8'}"
    low = make_warning("low_coverage", share=share, operations="products with weights", covered=covered)
    return replace(
        artifact,
        path=str(out),
        sha256=sha256,
        files=files,
        precision="fp8" if static else "int8",
        recipe=recipe,
        parent_sha256=artifact.sha256,
        preprocess_sha256=data.preprocess_sha256,
        made_by={"torch": str(torch.__version__), **({} if static else {"torchao": version("torchao")})},
        warnings=tuple(dict.fromkeys((*artifact.warnings, *data.warnings, *([low] if share < LOW_COVERAGE else [])))),
    )


def _to_int8(module: Any, samples: Iterable[Sequence[Any]], method: str) -> Any:
    from torchao.quantization.pt2e import MinMaxObserver
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    config = x86.get_default_x86_inductor_quantization_config()
    if method == "minmax":
        spec = change(config.input_activation, observer_or_fake_quant_ctr=MinMaxObserver.with_args(eps=2**-12))
        config = change(config, input_activation=spec, output_activation=spec)
    prepared = prepare_pt2e(module, x86.X86InductorQuantizer().set_global(config))
    for sample in samples:
        prepared(*sample)
    return convert_pt2e(prepared)


class _Fp8Linear(nn.Module):  # type: ignore[misc]  # PyTorch is not followed by mypy
    """A linear layer in FP8 with one scale for its weights and one for its inputs, whose largest value is `largest`.

    It has no `weight`: code that reads the weight of the layer is refused while the module is exported.
    """

    def __init__(self, layer: Any, largest: Any) -> None:
        super().__init__()
        weight = layer.weight.detach().float()
        self.register_buffer("scale_in", (largest.float() / FP8.max).clamp_min(SMALLEST))
        self.register_buffer("scale", (weight.abs().max() / FP8.max).clamp_min(SMALLEST))
        self.register_buffer("levels", (weight / self.scale).to(torch.float8_e4m3fn))
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach().bfloat16())

    def forward(self, x: Any) -> Any:
        levels = (x.float() / self.scale_in).clamp(FP8.min, FP8.max)
        # GPUs take rows alone; what is transposed would be columns where its other axes are of length 1.
        rows = levels.to(torch.float8_e4m3fn, memory_format=torch.contiguous_format).reshape(-1, x.shape[-1])
        product = torch._scaled_mm(
            rows,
            self.levels.t(),
            self.scale_in,
            self.scale,
            bias=self.bias,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )
        return product.reshape(*x.shape[:-1], -1)


class _InBf16(Flat):
    """The module in BF16 around its layers of fewer bits, with the inputs and outputs of the artifact."""

    def __init__(self, module: Any, outputs: list[Any]) -> None:
        super().__init__(module)
        self.outputs = outputs

    def forward(self, *inputs: Any) -> Any:
        returned = self.module(*(x.bfloat16() if x.is_floating_point() else x for x in inputs))
        outputs = returned if isinstance(returned, tuple) else (returned,)
        return tuple(tensor.to(dtype) for tensor, dtype in zip(outputs, self.outputs, strict=True))


def _to_fp8(module: Any, artifact: Artifact, samples: Iterable[Sequence[Any]]) -> tuple[Any, float]:
    """(the module in BF16, with the linear layers that the samples reach in FP8; their share of all with weights)."""
    largest = dict[Any, Any]()

    def keep(layer: Any, inputs: Sequence[Any]) -> None:
        magnitude = inputs[0].abs().max()
        largest[layer] = torch.maximum(largest.get(layer, magnitude), magnitude)

    weighted = [part for part in module.modules() if isinstance(part, _WEIGHTED)]
    layers = [part for part in weighted if type(part).forward is nn.Linear.forward]
    hooks = [
        layer.register_forward_pre_hook(keep)
        for layer in layers
        if layer.in_features % STEP == layer.out_features % STEP == 0
        if not layer._forward_hooks and not layer._forward_pre_hooks  # the user's, who would lose them
    ]
    for sample in samples:
        module(*sample)
    for hook in hooks:
        hook.remove()
    if not largest:
        fit = f"linear layer whose sizes are multiples of {STEP} and which has no hooks"
        raise ModelError(f"{artifact.model} has no {fit}. Ask for bf16")
    made, replacements = (
        copy.deepcopy(module).bfloat16(),
        {layer: _Fp8Linear(layer, largest[layer]) for layer in largest},
    )
    for name, layer in module.named_modules(remove_duplicate=False):  # one layer may have several names
        if layer in replacements:
            made.set_submodule(name, replacements[layer])
    return _InBf16(made, [getattr(torch, spec.dtype) for spec in artifact.outputs]), len(largest) / len(weighted)


def _read_coverage(module: Any, model: str) -> float:
    """Share of the products with weights that have both sides in INT8."""
    layers, constant = [], set[Any]()
    for node in module.graph.nodes:  # in the order in which they run
        read, kind = node.all_input_nodes, _PRODUCTS.match(str(node.target))
        if node.op == "get_attr" or (read and constant.issuperset(read)):
            constant.add(node)
        elif kind and (kind[1] or constant.intersection(read[-2:])):
            layers.append(node)
    done = [node for node in layers if all("dequantize" in str(source) for source in node.args[:2])]
    if not done:
        raise ModelError(f"{model} has no convolution or linear layer that PT2E's quantizer for x86 takes")
    return len(done) / len(layers)
