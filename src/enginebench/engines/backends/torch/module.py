"""Check what PyTorch runs on this CPU, and prepare the module of a `torch` artifact: folded, placed, laid out, cast."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from msgspec.structs import replace

from enginebench.core.entry import Option
from enginebench.core.errors import BackendUnavailable, ModelError, UsageError, explaining, importing
from enginebench.core.feeds import random_feeds
from enginebench.core.protocols import ModuleLoader
from enginebench.core.recipes import STEP, TORCHAO
from enginebench.core.records import Artifact, ArtifactKind, EngineSpec, Precision, TensorSpec
from enginebench.core.shapes import concrete_shape
from enginebench.engines.backends.torch.entries import CPU_PRECISIONS
from enginebench.engines.pytorch_module import DTYPES, find_reason, flatten_tensors, fold_part, place_module
from enginebench.engines.request import check_instructions, check_request, read_options


def check_torch_request(
    artifact: Artifact,
    spec: EngineSpec,
    options_by_name: Mapping[str, Option],
    kinds: tuple[ArtifactKind, ...] = ("torch",),
) -> dict[str, str]:
    """The options of a request that PyTorch can take on this CPU."""
    own: tuple[Precision, ...] = ("int8",) if "mode" in options_by_name and artifact.precision == "int8" else ()
    check_request(artifact, spec, kinds, (*CPU_PRECISIONS, *own))
    options = read_options(spec, options_by_name)
    if spec.precision in DTYPES and spec.precision != artifact.precision:  # its own is run as it is, emulated or not
        check_instructions(spec, has_instructions(spec.precision), options["force"] == "1")
    return options


def has_instructions(precision: str | None) -> bool:
    """Whether PyTorch sees instructions that compute in BF16, or in FP16; emulation does not count.

    FP16 without them runs on oneDNN's reference code: resnet18 took 3.4 s, and 0.07 s in FP32.
    """
    if hasattr(torch.cpu, "get_capabilities"):
        return any(value is True and str(precision) in name for name, value in torch.cpu.get_capabilities().items())
    if precision == "bf16":
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    return bool(getattr(torch.cpu, "_is_amx_fp16_supported", bool)())


# Of the largest output. Folding rounds 50 layers of resnet50 to 4e-7 of it; a norm in the wrong place is off by tenths.
TOLERANCE = 1e-4


def fold_batch_norms(module: Any, name: str, checks: Iterable[Sequence[Any]]) -> Any:
    """The module without the batch norms that directly follow a convolution or a linear layer.

    Parts that torch.fx can trace become traced graphs if there is something to fold in them; the others, such as a
    wrapper with a variable number of inputs, stay as they are around them. The original is not touched.

    Args:
        checks: tensors for all inputs; on the first that the module takes folded and original must agree. A layer that
            is used elsewhere, too, cannot take a batch norm, and a trace does not always show it.
    """
    obstacles: list[str] = []
    folded = fold_part(module, obstacles)
    if folded is module:
        why = f" in what torch.fx can trace: {obstacles[0]}" if obstacles else ""
        raise ModelError(
            f"{name} has no batch norm that directly follows a convolution or a linear layer{why}. Leave out fold_bn=1"
        )
    failed = f"batch norms of {name} were folded, but it cannot be checked that its outputs stay the same"
    with explaining(ModelError, failed, describe=find_reason, cure="Leave out fold_bn=1"), torch.inference_mode():
        inputs, outputs = _call_with_first(module, checks)
        pairs = list(zip(outputs, flatten_tensors(folded(*inputs)), strict=True))
    for expected, output in pairs:
        largest = float(expected.abs().max()) if expected.numel() else 0.0
        difference = float((expected - output).abs().max()) if expected.numel() else 0.0
        if not difference <= TOLERANCE * largest:
            raise ModelError(
                f"{name} gives other outputs once its batch norms are folded: {difference:.2g} off where the largest "
                f"output is {largest:.2g}; a layer is used twice, or along another axis. Leave out fold_bn=1"
            )
    return folded


def _call_with_first(module: Any, checks: Iterable[Sequence[Any]]) -> tuple[Sequence[Any], list[Any]]:
    """Return (inputs, outputs) of the first inputs that the module accepts; raise the last error if there are none."""
    refusal: Exception = ValueError("there is nothing to call it with")
    for inputs in checks:
        try:
            outputs = list(flatten_tensors(module(*inputs)))
        except Exception as error:
            refusal = error
            continue
        if any(output.numel() for output in outputs):
            return inputs, outputs
        refusal = ValueError("its outputs are empty")
    raise refusal


# Two samples show a norm that was folded along the wrong axis; 256 take resnet50 half a minute on four cores.
CHECK_BATCH = 2


def load_ready_module(
    artifact: Artifact, spec: EngineSpec, options: Mapping[str, str], loader: ModuleLoader | None
) -> Any:
    """The module on its device, as the options and the precision of the request want it."""
    module = load_engine_module(artifact, loader)
    if options["fold_bn"] == "1":
        module = fold_batch_norms(module, artifact.model, make_checks(artifact.inputs, spec.batch))
    return place_module(module, artifact, spec, options)


def make_checks(specs: Sequence[TensorSpec], batch: int) -> Iterator[list[Any]]:
    """Tensors for the inputs: first with few samples, then with all, for a module that takes no other number."""
    shapes = [concrete_shape(spec, batch) for spec in specs]
    choices = [specs]
    if all(shape[:1] == (batch,) for shape in shapes):
        few = [replace(spec, shape=(min(batch, CHECK_BATCH), *spec.shape[1:])) for spec in specs if spec.shape]
        choices = [few, specs]
    for choice in choices:
        yield [torch.from_numpy(array) for array in random_feeds(choice, batch, seed=0).values()]


def load_engine_module(artifact: Artifact, loader: ModuleLoader | None) -> Any:
    """The module of a `torch` artifact, in inference mode."""
    if loader is None:
        raise UsageError(f"{artifact.model} is a torch artifact; open the backend with a module loader")
    module = loader(artifact)
    if not isinstance(module, torch.nn.Module):
        raise ModelError(f"the loader of {artifact.model} returned a {type(module).__name__}, not a torch.nn.Module")
    return module.eval()


def load_quantized(
    artifact: Artifact, spec: EngineSpec, options: Mapping[str, str], loader: ModuleLoader | None
) -> Any:
    """The module in BF16, its linear layers in eight bits by torchao, which scales what goes in in each run."""
    module = load_ready_module(artifact, replace(spec, precision="bf16"), options, loader)
    if not any(fits(layer) for layer in module.modules()):
        raise ModelError(
            f"{spec.precision}@{spec.recipe} covers linear layers whose sizes are multiples of {STEP}, and "
            f"{artifact.model} has none. Ask {spec.backend} for bf16"
        )
    with importing("torchao", TORCHAO):
        from torchao import quantization as torchao
    if spec.precision == "fp8":
        scale = torchao.PerRow() if options["scales"] == "row" else torchao.PerTensor()
        config = torchao.Float8DynamicActivationFloat8WeightConfig(granularity=scale)
    else:
        config = torchao.Int8DynamicActivationInt8WeightConfig()
    refusal = f"torchao makes no {spec.precision}@{spec.recipe} here"
    with explaining(BackendUnavailable, refusal, AssertionError):  # torchao's message for what a GPU lacks
        torchao.quantize_(module, config, filter_fn=lambda layer, _: fits(layer))
    return module


def fits(layer: Any) -> bool:
    """Whether a layer is a linear one of sizes that matrix units take."""
    return isinstance(layer, torch.nn.Linear) and layer.in_features % STEP == layer.out_features % STEP == 0
