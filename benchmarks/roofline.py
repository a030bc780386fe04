"""How near a model's layers are to the limits of this machine, measured in one go.

python benchmarks/roofline.py cpu    # resnet18 INT8 in OpenVINO, by layer, on one thread; a few minutes
python benchmarks/roofline.py gpu    # resnet50 FP16, batch 32, by layer in every engine of the list that is installed

Peaks are measured first; --stored takes those that are there. It ends with 1 where something beats its bound.

The claims of docs/roofline.md rest on this.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

import enginebench
from enginebench.core.errors import EngineBenchError
from enginebench.engines.registry import find_installed
from enginebench.stats.engine_profile import EngineLayerTime, EngineProfileDocument

GPU_ENGINES = (
    "tensorrt",
    "trtexec",
    "pytorch-cudagraph",
    "pytorch:channels_last=1",
    "pytorch-cudagraph:channels_last=1",
    "pytorch-compile:mode=reduce-overhead",
    "pytorch-compile:mode=reduce-overhead,freezing=1,channels_last=1",
)
SLOWEST = 12


def profile_cpu() -> EngineProfileDocument:
    """resnet18 in INT8, OpenVINO, one thread."""
    return enginebench.profile("resnet18", engine="openvino", precision="int8", threads=1, weights="random")


def profile_gpu() -> Iterator[EngineProfileDocument]:
    """resnet50 in FP16 at batch 32, in every engine that can be had; says which cannot."""
    for engine in GPU_ENGINES:
        if not find_installed(engine.partition(":")[0]).available:
            print(f"{engine}: not installed")
            continue
        try:
            yield enginebench.profile(
                "resnet50", engine=engine, precision="fp16", batch=32, device="cuda:0", weights="random"
            )
        except EngineBenchError as error:
            print(f"{engine}: {error}")


def show(document: EngineProfileDocument) -> None:
    """The slowest layers, the share of the limit of the whole, and what stands for no node."""
    print(f"{document.model} {document.engine} {document.precision} batch {document.batch} {document.device}")
    print(f"{'ms':>9} {'bound':>9} {'of limit':>9}  by          layer")
    for layer in document.layers[:SLOWEST]:
        figures = f"{layer.average_ms:9.4f} {_number(layer.bound_ms)} {_share(layer.of_limit)}"
        print(f"{figures}  {layer.bound_by or '-':10}  {layer.name[:60]}")
    print(
        f"whole: {document.end_to_end_ms:.4f} ms, bound {_number(document.bound_ms).strip()} ms, "
        f"{_share(document.of_limit).strip()} of the limit, {document.bound_by}"
    )
    print(f"unmapped: {_share(document.unmapped_share).strip()} of the layers' time")
    print(*document.notes, sep="\n")


def _number(value: float | None) -> str:
    return f"{'-':>9}" if value is None else f"{value:9.4f}"


def _share(value: float | None) -> str:
    return f"{'-':>9}" if value is None else f"{value:9.1%}"


def list_beaten(document: EngineProfileDocument) -> list[EngineLayerTime]:
    """The layers that took less than their bound, as the profile itself warnings them."""
    return [layer for layer in document.layers if layer.of_limit and layer.of_limit > 1]


def main() -> None:
    """Measures peaks, then the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["cpu", "gpu"])
    parser.add_argument("--stored", action="store_true", help="take the ceilings that are stored")
    parser.add_argument("--quick", action="store_true", help="measure ceilings in haste")
    given = parser.parse_args()
    if not given.stored:
        found = enginebench.roofline(device="cpu" if given.part == "cpu" else "cuda:0", threads=1, quick=given.quick)
        for one in found.peaks:
            print(f"{one.device:7} {one.kind:7} {one.precision or '-':5} {one.value:10.4g} {one.unit:7} {one.method}")
    count = rows = 0
    for document in [profile_cpu()] if given.part == "cpu" else profile_gpu():
        show(document)
        rows, count = rows + 1, count + len(list_beaten(document)) + ((document.of_limit or 0) > 1)
    print(f"rows: {rows}, rows and layers above 100 %: {count}")
    sys.exit(1 if count or not rows else 0)


if __name__ == "__main__":
    main()
