"""The child's part of `stages`: JPEG file to label, one stage after another, then overlapped."""

import io
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count, cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from enginebench.core.errors import UsageError
from enginebench.core.protocols import Array, CopyClock, DeviceClock, Engine, Loadable
from enginebench.core.records import EngineSpec
from enginebench.engines.registry import find_entry
from enginebench.models.pictures import import_pillow
from enginebench.models.task import Preprocess, choose_preprocess, hash_preprocess
from enginebench.runs.child.jobs import NoteCall
from enginebench.runs.child.other_jobs import StagesJob, StagesResponse
from enginebench.stats.stages import STAGES

Clock = Callable[[], int]
TOP_K = 5
# Batches before the first that counts: decoder tables, buffers and caches are made in them.
WARMUP_BATCHES = 3
# Fewer batches than this show no p99 worth its name (see `stats.quantiles.min_samples`), but a median.
MIN_BATCHES = 10


def perform_stages(job: StagesJob, note: NoteCall) -> StagesResponse:
    from enginebench.models.photos import read_photos
    from enginebench.runs.child.opening import build_configuration, open_for
    from enginebench.runs.child.perform.outputs import check_prepared_alike

    photos = read_photos(Path(job.images_dir), job.n)
    preprocess = choose_preprocess(job.model, job.input_size, job.artifact.inputs)
    check_prepared_alike(job.artifact, hash_preprocess(job.model, job.input_size, job.artifact.inputs))
    backend = open_for(job.engine, job.out_dir)
    if not isinstance(backend, Loadable):
        raise UsageError(f"{job.engine.backend} times itself; stages needs an engine that it can feed")
    artifact = build_configuration(backend, job.artifact, job.engine, job.out_dir, note)
    with backend.load(artifact, job.engine) as engine:
        note("one stage after another")
        serial = time_serial(engine, photos, preprocess, job.engine.batch, job.time_limit_s)
    note(
        f"overlapped: {job.decoders} threads decode, {job.lanes} {'batch' if job.lanes == 1 else 'batches'} on the way"
    )
    sleepy = choose_waiting(job.engine)
    rate = time_overlapped(
        lambda: backend.load(artifact, sleepy),
        photos,
        preprocess,
        batch=job.engine.batch,
        decoders=job.decoders,
        lanes=job.lanes,
        seconds=job.time_limit_s,
    )
    return replace(serial, overlapped_per_s=rate, engine_version=backend.probe().version)


def choose_waiting(spec: EngineSpec) -> EngineSpec:
    """The spec with a wait that leaves the interpreter to others: a lane that spins would hold its lock."""
    patient = find_entry(spec.backend).describe_on(spec.device).beside_itself
    return replace(spec, options={**patient, **spec.options})


def decode_photo(jpeg: bytes) -> Any:
    picture = import_pillow().open(io.BytesIO(jpeg))
    picture.load()  # opening alone reads the header only
    return picture


def rank_classes(logits: Array) -> tuple[Array, Array]:
    """(classes, probabilities) of the five best, best first, each [n, 5] or [n, classes] where there are fewer."""
    scores = np.asarray(logits, dtype=np.float32).reshape(len(logits), -1)
    scores = scores - scores.max(axis=1, keepdims=True)
    shares = np.exp(scores)
    shares /= shares.sum(axis=1, keepdims=True)
    best = np.argsort(-shares, axis=1)[:, :TOP_K]
    return best, np.take_along_axis(shares, best, axis=1)


def time_serial(
    engine: Engine,
    photos: Sequence[bytes],
    preprocess: Preprocess,
    batch: int,
    seconds: float,
    clock: Clock = time.perf_counter_ns,
) -> StagesResponse:
    """Nanoseconds of every stage of every batch, one stage after another, each to its end.

    `copy_in` ends when the copy is complete, where the engine can tell; so `compute` holds no copy.
    """
    waits = engine.last_h2d_ns if isinstance(engine, CopyClock) else lambda: 0
    times: dict[str, list[int]] = {name: [] for name in STAGES}
    device: dict[str, list[int]] = {"h2d": [], "compute": [], "d2h": []}
    classes: Array = np.empty((0, TOP_K))
    name, output = engine.inputs[0].name, engine.outputs[0].name
    began, run = clock(), None
    for index in count():
        chosen = [photos[(index * batch + i) % len(photos)] for i in range(batch)]
        t0 = clock()
        pictures = [decode_photo(photo) for photo in chosen]
        t1 = clock()
        array = np.stack([preprocess.apply(picture) for picture in pictures])
        t2 = clock()
        engine.bind({name: array})
        waits()
        t3 = clock()
        run = engine.run if run is None else run
        run()
        t4 = clock()
        outputs = engine.fetch()
        t5 = clock()
        best, _ = rank_classes(outputs[output])
        t6 = clock()
        if index == 0:
            classes = best
        if index < WARMUP_BATCHES:
            began = t6
            continue
        for stage, start, stop in zip(STAGES, (t0, t1, t2, t3, t4, t5), (t1, t2, t3, t4, t5, t6), strict=True):
            times[stage].append(stop - start)
        if isinstance(engine, DeviceClock) and isinstance(engine, CopyClock):
            device["h2d"].append(engine.last_h2d_ns())
            device["compute"].append(engine.last_device_ns())
            device["d2h"].append(engine.last_d2h_ns())
        if t6 - began >= seconds * 1e9 and index >= WARMUP_BATCHES + MIN_BATCHES - 1:
            break
    return StagesResponse(
        stages_ns=times,
        device_ns={key: values for key, values in device.items() if values},
        overlapped_per_s=0.0,
        top_classes=[int(row[0]) for row in classes],
    )


def time_overlapped(
    load: Callable[[], Engine],
    photos: Sequence[bytes],
    preprocess: Preprocess,
    *,
    batch: int,
    decoders: int,
    lanes: int,
    seconds: float,
) -> float:
    """Pictures a second when decoding, copies and computing overlap.

    `decoders` threads decode and prepare pictures ahead; each of `lanes` threads has an engine of its own, with its own
    stream and buffers, and takes the next batch as soon as it is done with the last.

    Args:
        load: makes an engine; called once in each lane, one after another.
    """
    # Held while an engine is loaded, too: nothing else may be allocated on a GPU while a graph is captured.
    lock, ready, failed = threading.Lock(), threading.Barrier(lanes), threading.Event()
    ended = [list[int]() for _ in range(lanes)]  # when each batch of each lane was done
    supply, waiting = cycle(photos), deque[Future[Array]]()

    def order(count: int) -> None:
        jpegs = islice(supply, count)
        waiting.extend(decoding.submit(lambda jpeg: preprocess.apply(decode_photo(jpeg)), jpeg) for jpeg in jpegs)

    def take() -> Array:
        """The next batch; as many pictures are ordered as were taken."""
        with lock:
            chosen = [waiting.popleft() for _ in range(batch)]
            order(batch)
        return np.stack([future.result() for future in chosen])

    def goes_on() -> bool:
        begun = [lane[WARMUP_BATCHES - 1] for lane in ended if len(lane) > WARMUP_BATCHES]
        return not failed.is_set() and (len(begun) < lanes or time.perf_counter_ns() - max(begun) < seconds * 1e9)

    def drive(lane: list[int]) -> None:
        try:
            with lock:
                engine = load()
            with engine:
                ready.wait()  # every lane has its engine
                name, output = engine.inputs[0].name, engine.outputs[0].name
                while goes_on():
                    engine.bind({name: take()})
                    engine.run()
                    rank_classes(engine.fetch()[output])
                    lane.append(time.perf_counter_ns())
        except BaseException:
            failed.set()
            ready.abort()
            raise

    with ThreadPoolExecutor(lanes) as driving, ThreadPoolExecutor(decoders) as decoding:
        order(2 * lanes * batch + decoders)
        driven = [driving.submit(drive, lane) for lane in ended]
        errors = [error for one in driven if (error := one.exception()) is not None]
        decoding.shutdown(cancel_futures=True)
    if errors:  # of a lane whose neighbour failed, the broken barrier alone
        raise next((error for error in errors if not isinstance(error, threading.BrokenBarrierError)), errors[0])
    begun = max(lane[WARMUP_BATCHES - 1] for lane in ended)
    done = [at for lane in ended for at in lane if at > begun]
    return batch * len(done) * 1e9 / (max(done) - begun)
