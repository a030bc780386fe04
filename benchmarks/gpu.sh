#!/usr/bin/env bash
# Measures the built-in image models on an NVIDIA GPU and leaves the stored rows, compressed, in $OUT.
#
#   benchmarks/gpu.sh [--build] PART...
#
# check                doctor, the tests that need a GPU, CUDA's and TensorRT's bindings
# probe                one short row of every engine, its kernels by name
# resnet18, resnet50   the head rows with ten processes each (batch 1; batch 32), and with copies
# MODEL-batches        batches 1, 32 and 256 of resnet18, resnet50, mobilenet_v3_small, efficientnet_b0
# MODEL-settings       resnet18 with a batch of 1, resnet50 with one of 32: one change of settings at a time
# digits-mlp           the small network, copies included
# stages               JPEG file to label
#
# --build              builds and checks the rows of the parts, several at once; a call after it measures them
#
# A part that was interrupted goes on where it stopped when it is called again on the same machine.
#
# Set for machines without a network: WHEELS, a folder of wheels to install beside the system's packages, and
# ORT_GPU_SITE, a folder that holds onnxruntime-gpu; without it rows of ort-cuda are skipped.
set -u -o pipefail
cd "$(dirname "$0")/.."
export OUT="${OUT:-results/gpu}" PYTHONUNBUFFERED=1
mkdir -p "$OUT"

site=/tmp/enginebench-site
if compgen -G "${WHEELS:-.whl}/*.whl" >/dev/null && [ ! -d "$site" ]; then
    python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$site" "${WHEELS:-.whl}"/*.whl || exit 1
fi
PYTHONPATH="$site:$PWD/src${PYTHONPATH:+:$PYTHONPATH}"
if [ -n "${ORT_GPU_SITE:-}" ]; then
    PYTHONPATH="$ORT_GPU_SITE:$PYTHONPATH"
    nvidia=$(python3 -c 'import nvidia; print("\n".join(nvidia.__path__))' 2>/dev/null | head -1)
    if [ -n "$nvidia" ]; then
        for folder in "$nvidia"/*/lib; do LD_LIBRARY_PATH="$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"; done
        export LD_LIBRARY_PATH
    fi
fi
export PYTHONPATH
exec python3 benchmarks/gpu.py --out "$OUT" "$@"
