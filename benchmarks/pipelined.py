"""Images per second of resnet50 on one NVIDIA GPU, from bytes on the host to scores on the host, by PyTorch alone.

    python benchmarks/pipelined.py [--batch 32] [--depth 3] [--seconds 5]

It imports nothing of EngineBench, so that `run resnet50 --scope pipelined --input-dtype uint8` has an independent
figure beside it. FP16, channels last, batch norms folded, seeded random weights; bytes are normalized on the GPU. Each
of `depth` slots has pinned buffers and a CUDA graph; copies in, computation and copies out are on a stream each. Every
batch is copied from ordinary memory into its pinned buffer, and its scores from theirs. One JSON line.

The claims of docs/gpu.md and docs/results.md rest on this.
"""

import json
import time
from argparse import ArgumentParser
from itertools import pairwise
from statistics import median

import numpy as np
import torch
from floor import FromBytes


class Slot:
    def __init__(self, call, batch, compute):
        self.host_in = torch.empty((batch, 3, 224, 224), dtype=torch.uint8, pin_memory=True)
        self.host_out = torch.empty((batch, 1000), pin_memory=True)
        self.device_in = torch.zeros((batch, 3, 224, 224), dtype=torch.uint8, device="cuda")
        self.views = self.host_in.numpy(), self.host_out.numpy()
        self.events = [torch.cuda.Event() for _ in range(3)]
        with torch.cuda.stream(compute):
            for _ in range(3):
                call(self.device_in)
            torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=compute):
            self.answer = call(self.device_in)

    def submit(self, image, copy_in, compute, copy_out):
        copied, computed, done = self.events
        np.copyto(self.views[0], image)
        with torch.cuda.stream(copy_in):
            self.device_in.copy_(self.host_in, non_blocking=True)
            copied.record()
        with torch.cuda.stream(compute):
            compute.wait_event(copied)
            self.graph.replay()
            computed.record()
        with torch.cuda.stream(copy_out):
            copy_out.wait_event(computed)
            self.host_out.copy_(self.answer, non_blocking=True)
            done.record()

    def collect(self):
        self.events[2].synchronize()
        return self.views[1].copy()


@torch.inference_mode()
def main():
    parser = ArgumentParser()
    for name, default in (("batch", 32), ("depth", 3), ("seconds", 5.0)):
        parser.add_argument(f"--{name}", type=type(default), default=default)
    asked = parser.parse_args()
    streams = [torch.cuda.Stream() for _ in range(3)]
    call = FromBytes().cuda().eval()
    slots = [Slot(call, asked.batch, streams[1]) for _ in range(asked.depth)]
    images = np.random.default_rng(0).integers(0, 256, (64, asked.batch, 3, 224, 224), dtype=np.uint8)
    begun, latencies, rates, batches, mark = [0.0] * asked.depth, [], [], 0, time.perf_counter()
    while len(rates) < 10 * asked.seconds:  # rates of a tenth of a second each: the first ones warm up
        slot = batches % asked.depth
        if batches >= asked.depth:
            slots[slot].collect()
            latencies.append(time.perf_counter() - begun[slot])
        begun[slot] = time.perf_counter()
        slots[slot].submit(images[batches % len(images)], *streams)
        batches += 1
        if time.perf_counter() - mark > 0.1:
            rates.append((batches, time.perf_counter()))
            mark = rates[-1][1]
    torch.cuda.synchronize()
    steps = [(b[0] - a[0]) / (b[1] - a[1]) * asked.batch for a, b in pairwise(rates)][len(rates) // 5 :]
    told = {"images_per_s": round(median(steps), 1), "latency_ms": round(median(latencies) * 1e3, 4)}
    print(json.dumps(told | vars(asked) | {"gpu": torch.cuda.get_device_name()}))


if __name__ == "__main__":
    main()
