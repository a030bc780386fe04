"""What one image costs at least on an NVIDIA GPU, by PyTorch alone: waits, copies, a launch, and all of them together.

    python benchmarks/floor.py [--batch 1]

It imports nothing of EngineBench, so that `run resnet50 --scope io --input-dtype uint8` has an independent figure
beside it. resnet50 in FP16, channels last, batch norms folded, seeded random weights, compiled and captured in one CUDA
graph; bytes are normalized on the GPU. One JSON line: medians of 1,000 calls in microseconds by the host's clock.

The claims of docs/gpu.md rest on this.
"""

import json
import statistics
import time
from argparse import ArgumentParser

import numpy as np
import torch
from torch.fx.experimental.optimization import fuse
from torchvision.models import resnet50

MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)


class FromBytes(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = fuse(resnet50(weights=None).eval()).half().to(memory_format=torch.channels_last)
        self.mean, self.std = (torch.tensor(v, device="cuda").view(1, 3, 1, 1) for v in (MEAN, STD))

    def forward(self, image):
        image = ((image.float() - self.mean) / self.std).half()
        return self.net(image.contiguous(memory_format=torch.channels_last)).float()


def clock(call, calls=1000):
    times = []
    for number in range(100 + calls):
        begin = time.perf_counter()
        call()
        if number >= 100:
            times.append(time.perf_counter() - begin)
    return round(1e6 * statistics.median(times), 1)


def capture(call, stream):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        answer = call()
    return graph.replay, answer


@torch.inference_mode()
def main():
    parser = ArgumentParser()
    parser.add_argument("--batch", type=int, default=1)
    batch = parser.parse_args().batch
    stream, event = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
    torch.cuda.set_stream(stream)
    call = torch.compile(FromBytes().cuda().eval(), dynamic=False, fullgraph=True)
    host_in = torch.empty((batch, 3, 224, 224), dtype=torch.uint8, pin_memory=True)
    host_out = torch.empty((batch, 1000), pin_memory=True)
    device_in, one = torch.zeros_like(host_in, device="cuda"), torch.zeros(1, device="cuda")
    image = np.random.default_rng(0).integers(0, 256, tuple(host_in.shape), dtype=np.uint8)
    for _ in range(5):
        call(device_in)
    torch.cuda.synchronize()
    (replay, answer), (tiny, _) = capture(lambda: call(device_in), stream), capture(lambda: one.add_(1), stream)

    def wait():
        event.record(stream)
        while not event.query():
            pass

    def then_wait(*calls):
        for each in calls:
            each()
        wait()

    stage, read = (lambda: np.copyto(host_in.numpy(), image)), (lambda: host_out.numpy().copy())
    copy_in = lambda: device_in.copy_(host_in, non_blocking=True)  # noqa: E731
    copy_out = lambda: host_out.copy_(answer, non_blocking=True)  # noqa: E731
    told = {
        "wait_us": clock(wait),
        "smallest_graph_us": clock(lambda: then_wait(tiny)),
        "compute_us": clock(lambda: then_wait(replay)),
        "copy_in_us": clock(lambda: then_wait(copy_in)),
        "copy_out_us": clock(lambda: then_wait(copy_out)),
        "staging_us": clock(stage),
        "io_us": clock(lambda: (then_wait(stage, copy_in, replay, copy_out), read())),
    }
    print(json.dumps(told | {"batch": batch, "gpu": torch.cuda.get_device_name()}))


if __name__ == "__main__":
    main()
