"""`int8@pt2e`: a PyTorch module quantized by torchao's PT2E for the x86 kernels that torch.compile calls."""

import re
from dataclasses import replace as change
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace

from enginebench.core.caveats import make_caveat
from enginebench.core.errors import MissingDependency, ModelError
from enginebench.core.feeds import random_feeds
from enginebench.core.recipes import TORCHAO
from enginebench.core.records import Artifact
from enginebench.core.shapes import find_own_batch, takes_whole
from enginebench.core.store import hash_files
from enginebench.core.text import first_line
from enginebench.models.precision.calibration import check_preprocess
from enginebench.models.precision.calibration_data import CalibrationData
from enginebench.models.torch.export import add_batch, describe_dynamic, quiet_exporter, set_batch_axes, to_tensors
from enginebench.models.torch.source import load_module, read_state_names

# Products with weights: the layers that the quantizer knows, and bare ones with a constant side, which stay in floats.
_PRODUCTS = re.compile(r"^aten\.(?:(conv|linear)|matmul|b?mm|addb?mm|baddbmm|einsum)")
LOW_COVERAGE = 0.5


def import_pt2e() -> None:
    """Makes the operators of quantized modules known to PyTorch."""
    try:
        with quiet_exporter():
            import torchao.quantization.pt2e.quantize_pt2e  # noqa: F401
    except ModuleNotFoundError as missing:
        raise MissingDependency("torchao", TORCHAO) from missing


def quantize_module(artifact: Artifact, data: CalibrationData, out: Path, method: str, threads: int) -> Artifact:
    """The module with its convolutions and linear layers in INT8, as an exported program in `out`.

    Args:
        method: of the ranges: `minmax`; any other is torchao's own, which cuts a histogram where that costs least.
    """
    import_pt2e()
    from torchao.quantization.pt2e import MinMaxObserver
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    check_preprocess(data, artifact.model, artifact.preprocess_sha256)
    if read_state_names(artifact.caveats):
        raise ModelError(f"{artifact.model} keeps a state in its buffers, which a quantized module would lose")
    torch.set_num_threads(threads)
    config = x86.get_default_x86_inductor_quantization_config()
    if method == "minmax":
        spec = change(config.input_activation, observer_or_fake_quant_ctr=MinMaxObserver.with_args(eps=2**-12))
        config = change(config, input_activation=spec, output_activation=spec)
    if data.n < ((own := find_own_batch(artifact)) or 1) and not data.apart:
        raise ModelError(f"{artifact.model} takes {own} entries in a call, and {data.source} has {data.n} for ranges")
    opened = not own and not takes_whole(artifact.inputs)
    inputs = set_batch_axes(artifact.inputs, own or 2)  # the exporter takes an axis of length 1 for a fixed one
    examples, names = to_tensors(random_feeds(inputs, 1, seed=0), inputs), [spec.name for spec in inputs]
    try:
        with torch.no_grad(), quiet_exporter():
            module: Any = load_module(artifact)
            shapes = describe_dynamic(module, inputs, add_batch(inputs, {})) if opened else None
            # Strict: a module that is called several times has a name for each call, which the quantizer asks for.
            program = torch.export.export(module, examples, dynamic_shapes=shapes, strict=True)
            prepared = prepare_pt2e(program.module(), x86.X86InductorQuantizer().set_global(config))
            for feeds in data.batches(own or 1):
                if len(feeds[names[0]]) == (own or 1) or data.apart:
                    prepared(*(torch.from_numpy(feeds[name]) for name in names))
            made = convert_pt2e(prepared)
            share = _read_coverage(made, artifact.model)
            shapes = describe_dynamic(made, inputs, add_batch(inputs, {})) if opened else None
            torch.export.save(torch.export.export(made, examples, dynamic_shapes=shapes), out)
    except ModelError:
        raise
    except Exception as error:  # the exporter's, the quantizer's, or of the user's own code
        raise ModelError(f"{artifact.model} cannot be quantized by PT2E: {first_line(error)}") from error
    sha256, files = hash_files([out], out.parent)
    low = (make_caveat("low_coverage.layers", share=share),) if share < LOW_COVERAGE else ()
    return replace(
        artifact,
        path=str(out),
        sha256=sha256,
        files=files,
        precision="int8",
        recipe="pt2e",
        parent_sha256=artifact.sha256,
        preprocess_sha256=data.preprocess_sha256,
        made_by={"torch": str(torch.__version__), "torchao": version("torchao")},
        caveats=tuple(dict.fromkeys((*artifact.caveats, *data.caveats, *low))),
    )


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
