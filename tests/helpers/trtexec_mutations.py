"""Damage to trtexec artifacts, from a seed: what a fuzzer and the tests share."""

import random
from collections.abc import Callable
from pathlib import Path

import trtexec_artifacts as made
from enginebench.core.errors import ParseError
from enginebench.core.store import encode
from enginebench.features.trtexec.log import read_log
from enginebench.features.trtexec.times import summarize_trace
from enginebench.features.trtexec.trace import read_trace_bytes
from enginebench.stats.layer_diff import compare_layers
from enginebench.stats.plans.layers import read_engine_document, summarize_inspection
from enginebench.stats.plans.profile import read_profile, summarize_profile
from enginebench.stats.plans.source import decode_text, unpack_gzip

FILE = Path("fuzzed")
# What these formats are made of, and what breaks readers of them.
WORDS = [
    b"nan", b"-inf", b"1e999", b"-1", b"0", b"9" * 400, b"null", b"true", b'""', b"[]", b"{}", b"[", b"]", b"{", b"}",
    b'"', b"\\", b"\\u0000", b"\x00", b"\xff", b"\xfe\xff", b"\x1b[31m", b"\x1b]", b"\r", b"\n", b",", b" : ",
    b"&&&& RUNNING ",
    b"&&&& PASSED TensorRT.trtexec # x", b"&&&& TASK_BEGIN [", b"&&&& TASK_ABORT [", b"[11/21/2026-01:37:39] [I] ",
    b"[11/21/2026-01:37:39] [E] [TRT] (", b"=== Model Options ===", b"=== Performance summary ===", b"Latency: min = ",
    b" ms", b"percentile(99%) = ", b'"latencyMs"', b'"name" : "', b'{ "name" : "', b'", "timeMs" : ', b'"Layers"',
    b"Reformatting CopyNode for Input Tensor 0 to ", b" + ", b"PWN(", b"[ONNX Layer: ", b"[" * 3000, b'{"a":' * 3000,
]  # fmt: skip


def read_times(data: bytes) -> None:
    encode(summarize_trace(read_trace_bytes(data, FILE), FILE)[0])


def read_log_file(data: bytes) -> None:
    encode(read_log(decode_text(data), FILE))


def read_profile_file(data: bytes) -> None:
    encode(summarize_profile(read_profile(decode_text(data), FILE), FILE, end_to_end_ms=1.0))


def read_layers_file(data: bytes) -> None:
    document = summarize_inspection(read_engine_document(decode_text(data), FILE), FILE)
    encode(compare_layers(document, document))


def read_packed(data: bytes) -> None:
    unpack_gzip(FILE, data)


def list_targets() -> dict[str, tuple[Callable[[bytes], None], list[bytes]]]:
    """name -> (reader, whole artifacts to damage)."""
    import gzip

    times = [made.make_times(20), made.make_times(20, 300, keys=made.OLD_KEYS)]
    times += [b'{"unit": "us", "run": {"perIteration": [{"latency_us": 1.5, "h2d": {"ms": 2}}, {"latency_us": 2.5}]}}']
    times += [b'{"times": {"0": 1, "1": 2}, "latency_ms": [1, 2], "computeMs": [3, 4]}']
    profiles = [made.make_profile(), made.make_profile(['a"b', "\\x", ""])]
    profiles += [
        b'{"count": 2, "layers": [{"name": "a", "avg_us": 3}, {"name": "b", "avg_us": 4}], "profile_s": {"a": 1}}'
    ]
    profiles += [b'{"a": {"time": {"ms": 1}}, "b": {"time": {"ms": 2}}, "name": ["x"], "total_ms": [1]}']
    layers = [made.make_layers(), made.make_layers(version=11), made.make_layers(detailed=False)]
    logs = [text.encode() for text in (made.make_log(), made.make_log(110100, 106), made.make_log7())]
    logs += [logs[0].decode().encode("utf-16"), logs[0] + logs[2]]
    return {
        "times": (read_times, times),
        "log": (read_log_file, logs),
        "profile": (read_profile_file, profiles),
        "layers": (read_layers_file, layers),
        "gzip": (read_packed, [gzip.compress(times[0], mtime=0)]),
    }


def damage(data: bytes, seed: int) -> bytes:
    """`data` with a few random changes: bytes, words, deletions, trials, a cut."""
    rng = random.Random(seed)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at, length = rng.randrange(len(data) + 1), rng.choice((1, 1, 2, 8, 64, 512))
        kind = rng.randrange(6)
        if kind == 0:
            data = data[:at] + bytes(rng.randrange(256) for _ in range(min(length, 8))) + data[at + length :]
        elif kind == 1:
            data = data[:at] + rng.choice(WORDS) + data[at:]
        elif kind == 2:
            data = data[:at] + data[at + length :]
        elif kind == 3:
            data = data[:at] + data[at : at + length] * rng.choice((2, 3, 20)) + data[at + length :]
        elif kind == 4:
            data = data[:at]
        else:
            data = data[:at] + rng.choice(WORDS) + data[at + length :]
    return data


def try_one(name: str, seed: int) -> None:
    """Reads one damaged artifact; any exception but ParseError passes through."""
    read, wholes = list_targets_once()[name]
    try:
        read(damage(wholes[seed % len(wholes)], seed))
    except ParseError as error:
        assert str(error)


_TARGETS: dict[str, tuple[Callable[[bytes], None], list[bytes]]] = {}


def list_targets_once() -> dict[str, tuple[Callable[[bytes], None], list[bytes]]]:
    """As `list_targets`, made once."""
    if not _TARGETS:
        _TARGETS.update(list_targets())
    return _TARGETS
