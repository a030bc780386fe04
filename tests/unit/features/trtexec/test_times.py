"""Timing files: layouts, units, warm-up, both percentile rules, and every kind of damage."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trtexec_artifacts as made
from enginebench.core.errors import ParseError, UsageError
from enginebench.features.trtexec.records import LogRun, TimesDocument
from enginebench.features.trtexec.times import count_before, find_trtexec_index, summarize_trace
from enginebench.features.trtexec.trace import read_trace, read_trace_bytes

FILE = Path("times.json")


def summarize(data: bytes | str, **options: Any) -> TimesDocument:
    data = data.encode() if isinstance(data, str) else data
    return summarize_trace(read_trace_bytes(data, FILE), FILE, **options)[0]


def test_the_figures_are_those_of_the_queries() -> None:
    document = summarize(made.make_times(1000), batch=4)
    columns = made.sample_latencies(1000)
    ascending = np.sort(columns["latency"])
    assert (document.n, document.warmup_dropped, document.layout) == (1000, 0, "trtexec")
    assert document.latency_ms.min == ascending[0] and document.latency_ms.max == ascending[-1]
    assert document.latency_ms.median == pytest.approx((ascending[499] + ascending[500]) / 2, rel=1e-15)
    assert document.latency_ms.percentiles == {
        "50": document.latency_ms.median,
        "90": ascending[899],
        "95": ascending[949],
        "99": ascending[989],
        "99.9": ascending[998],
    }
    assert document.gpu_compute_ms is not None and document.gpu_compute_ms.mean == columns["compute"].mean()
    assert document.host_walltime_s == pytest.approx(columns["latency"].sum() / 1e3, rel=1e-4)
    assert document.throughput_qps is not None
    assert document.images_per_s == pytest.approx(4 * document.throughput_qps)
    assert document.cov["latency_ms"] == pytest.approx(ascending.std() / ascending.mean())
    assert document.percentile_rule == "nearest-rank"


@pytest.mark.parametrize(
    ("n", "label", "index"),
    # 1 - 0.99f is a little less than 0.01: of 100 queries trtexec leaves out none, and its p99 is the slowest.
    [(50, "90", 44), (100, "99", 99), (200, "99", 198), (10, "95", 9), (1, "99", 0), (1000, "99.9", 999)],
)
def test_trtexecs_rule_counts_what_to_leave_out(n: int, label: str, index: int) -> None:
    assert find_trtexec_index(n, label) == index


def test_the_mean_of_overlapping_queries_is_the_one_that_trtexec_prints() -> None:
    # Queries of about 0.24 ms, a new one every 0.06 ms; stamps and sums have 32 bits, and the file has six digits.
    n, rng = 20_000, np.random.default_rng(3)
    starts = (200 + 0.06 * np.arange(n)).astype(np.float32)
    times = (starts + rng.normal(0.24, 0.002, n).astype(np.float32)) - starts
    total = np.float32(0)
    for value in np.sort(times):
        total += value
    printed = float(f"{total / np.float32(n):.6g}")
    stamps = ("startEnqMs", "endEnqMs", "startH2dMs", "endH2dMs", "startComputeMs")
    ends = ("endComputeMs", "startD2hMs", "endD2hMs")
    queries = [
        {name: float(f"{start:.6g}") for name in stamps}
        | {name: float(f"{start + time:.6g}") for name in ends}
        | {"h2dMs": 0, "computeMs": float(f"{time:.6g}"), "d2hMs": 0, "latencyMs": float(f"{time:.6g}")}
        for start, time in zip(starts.tolist(), times.tolist(), strict=True)
    ]
    document = summarize(json.dumps(queries), warmup_ms=0, intervals=False)
    assert document.trtexec["latency_ms"].mean == printed
    assert document.trtexec["latency_ms"].median == float(f"{np.median(times):.6g}")
    # The mean of our own table is summed in 64 bits, and is another number.
    assert document.latency_ms.mean == pytest.approx(times.astype(np.float64).mean(), rel=1e-6)
    assert float(f"{document.latency_ms.mean:.6g}") != printed


def test_old_keys() -> None:
    document = summarize(made.make_times(50, start_ms=300, keys=made.OLD_KEYS))
    assert document.layout == "trtexec<=8.2"
    assert document.end_to_end_ms is not None and document.enqueue_ms is None
    assert document.latency_ms.max == made.sample_latencies(50)["latency"].max()


# Queries of 0.15 ms that reach a second.
SECOND = int(1000 / made.sample_latencies(9000)["latency"].mean()) + 2


@pytest.mark.parametrize(
    ("trace", "log", "drops", "reason"),
    [
        ({"n": 50}, None, False, "the whole run is shorter"),
        ({"n": 50, "start_ms": 250}, None, False, "the first query begins after 200 ms"),
        ({"n": int(1.2 * SECOND)}, None, True, "the run ends at whole seconds + 200 ms: it holds the warm-up"),
        ({"n": SECOND}, None, False, "the run ends at whole seconds: it had no warm-up"),
        ({"n": 4000}, None, True, "--warmup-ms 0 keeps them"),
        ({"n": 2000, "keys": made.OLD_KEYS}, None, True, "8.2"),
        ({"n": 4000}, "8.4.1", True, "8.4"),
        ({"n": 4000}, "8.5.0", False, "8.5"),
        ({"n": 4000}, "10.0.1", False, "10.0"),
    ],
)
def test_how_the_warm_up_is_known(trace: dict[str, Any], log: str | None, drops: bool, reason: str) -> None:
    data = made.make_times(**trace)
    document = summarize(data, log=LogRun(version=log) if log else None)
    assert document.n + document.warmup_dropped == trace["n"] and reason in document.warmup_reason
    starts = read_trace_bytes(data, FILE).columns["start_compute"]
    assert document.warmup_dropped == (count_before(starts, 200) if drops else 0)
    assert not drops or document.warmup_dropped > 1000


def test_the_user_knows_the_warm_up_best() -> None:
    log = LogRun(version="8.4.1", warmup_ms=100)
    assert summarize(made.make_times(4000), log=log, warmup_ms=0).warmup_dropped == 0
    by_log = summarize(made.make_times(4000), log=log).warmup_dropped
    assert 0 < by_log < summarize(made.make_times(4000), warmup_ms=200).warmup_dropped
    with pytest.raises(ParseError, match=r"50 queries, all of which begin within the warm-up of 1000 ms"):
        summarize(made.make_times(50), warmup_ms=1000)


@pytest.mark.parametrize("key", ["latencyMs", "computeMs", "startComputeMs", "endD2hMs", "endEnqMs"])
def test_a_renamed_key_names_itself_and_those_found(key: str) -> None:
    data = made.make_times(3).replace(f'"{key}"'.encode(), b'"somethingNewMs"')
    with pytest.raises(ParseError, match=rf"entry 0: found no key {key} \(keys there: .*somethingNewMs"):
        summarize(data)


def test_what_is_wrong_later_names_its_entry() -> None:
    data = made.make_times(3)
    last = data.rindex(b'"latencyMs"')
    with pytest.raises(ParseError, match=r"entry 2: found object missing required field `latencyMs`"):
        summarize(data[:last] + b'"latencyXx"' + data[last + 11 :])
    data = made.make_times(3)
    at = data.rindex(b'"computeMs" : ') + 14
    with pytest.raises(ParseError, match=r"entry 2, key computeMs: found expected `float`, got `str`"):
        summarize(data[:at] + b'"x", "y" : ' + data[at:])
    with pytest.raises(ParseError, match=r"entry 1: found latency of 1e\+300 ms"):
        data = made.make_times(2)
        summarize(data[: data.rindex(b'"latencyMs"')] + b'"latencyMs" : 1e300 }\n]\n')


@pytest.mark.parametrize("word", [b"nan", b"-nan", b"inf", b"-inf", b"nan(ind)"])
def test_nan_and_inf_are_counted_and_left_out(word: bytes) -> None:
    data = made.make_times(3)
    at = data.rindex(b'"latencyMs" : ') + 14
    document = summarize(data[:at] + word + b" }\n]\n")
    assert (document.n, document.nonfinite, document.warnings[-1].code) == (3, 1, "nonfinite")
    assert document.latency_ms.max == made.sample_latencies(3)["latency"][:2].max()
    with pytest.raises(ParseError, match="no finite latency"):
        summarize(re.sub(rb'"latencyMs" : [^ ]+', b'"latencyMs" : ' + word, made.make_times(2)))


NONE = "no iteration times"


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "the end of the file|JSON"),
        (b"hello", "malformed"),
        (b"{}", NONE),
        (b"[]", NONE),
        (b"[{}]", NONE),
        (b"null", NONE),
        (made.make_profile(), NONE),
        (made.make_layers(), NONE),
        (b'{"times": []}', NONE),
        (made.make_times(2) + b"x", "byte \\d+"),
        (made.make_times(2).replace(b"}\n,", b"}\n"), "',' or ']'"),
        (b"[1, 2]", NONE),
        (b"[" * 100_000, "found"),
        (b'{"a":' * 50_000, "found"),
        # Summaries and layers are no queries, and batch sizes do not number them.
        (b'{"mean_ms": 3, "p50_ms": 2}', r"keys there: mean_ms, p50_ms"),
        (b'{"fp16": {"latency_ms": 1}}', NONE),
        (b'[{"name": "fp16", "latency_ms": 1}, {"name": "fp32", "latency_ms": 2}]', NONE),
        (b'{"1": {"latency_ms": 1}, "8": {"latency_ms": 4}}', NONE),
    ],
)
def test_other_files_are_refused(data: bytes, found: str) -> None:
    with pytest.raises(ParseError, match=found):
        summarize(data)


def test_what_no_run_leaves_coarse_enqueue_times_and_several_streams_are_reported() -> None:
    entries = json.loads(made.make_times(20))
    one, both = summarize(json.dumps(entries)), summarize(json.dumps(entries + entries))
    assert one.throughput_qps is not None
    assert (both.n, both.throughput_qps, both.host_walltime_s) == (40, None, None)
    assert "several runs in one file" in both.notes[0]
    entries = json.loads(made.make_times(20))
    entries[3] |= {"latencyMs": -1, "d2hMs": -2}
    assert summarize(json.dumps(entries)).notes[0].startswith("2 times below zero")
    document = summarize(made.make_times(50, start_ms=1500))
    assert document.enqueue_ms is not None
    assert document.notes == ("enqueue times come from stamps of six digits: steps of 0.01 ms at the end of the run",)
    overlapping = summarize(made.make_times(50), log=LogRun(version="11.1.0", streams=2))
    assert "2 streams" in overlapping.notes[-1]


def test_intervals_contain_the_value_and_know_their_limits() -> None:
    intervals = summarize(made.make_times(5000)).intervals["latency_ms"]
    for label in ("mean", "50", "99"):
        estimate = intervals[label]
        assert estimate.low is not None and estimate.high is not None and estimate.supported
        assert estimate.low <= estimate.value <= estimate.high
    few = summarize(made.make_times(50)).intervals["latency_ms"]
    assert not few["99"].supported and "too few for an interval" in few["99"].method
    assert summarize(made.make_times(50)).warnings[0].code == "too_few_samples"
    assert summarize(made.make_times(50), intervals=False).intervals == {}


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le"])
def test_a_shell_may_have_changed_the_encoding(encoding: str) -> None:
    assert summarize(made.make_times(20).decode().encode(encoding)).n == 20


def summarize_file(path: Path) -> TimesDocument:
    return summarize_trace(read_trace(path), path)[0]


def test_files_on_disk_plain_packed_and_absent(tmp_path: Path) -> None:
    path = tmp_path / "zeiten ü.json.gz"
    path.write_bytes(gzip.compress(made.make_times(60)))
    assert summarize_file(path).n == len(read_trace(path)) == 60
    path.write_bytes(gzip.compress(made.make_times(60))[:-20])
    with pytest.raises(ParseError, match="gzip"):
        summarize_file(path)
    with pytest.raises(ParseError, match="No such file"):
        summarize_file(tmp_path / "no.json")


OTHER_LAYOUTS = [
    ('{"times": [{"latencyMs": 1}, {"latencyMs": 3}]}', "$.times"),
    ('{"times": [1, 3]}', "$.times"),
    ('{"perIteration": [1, 3]}', "$.perIteration"),
    ('{"run": {"perIteration": [{"latency_us": 1000}, {"latency_us": 3000}]}}', "$.run.perIteration"),
    ('{"a": {"b": {"times_us": [1000, 3000]}}}', "$.a.b.times_us"),
    ('{"latency_s": [0.001, 0.003]}', "$.latency_s"),
    ('[{"time_s": 0.001}, {"time_s": 0.003}]', "$"),
    ('[{"latency": {"ms": 1}}, {"latency": {"ms": 3}}]', "$"),
    ('{"latency": {"us": [1000, 3000]}}', "$.latency_us"),
    ('{"1": {"latencyMs": 3}, "0": {"latencyMs": 1}}', "$"),
    ('{"times": {"iter_0": 1, "iter_1": 3}}', "$.times"),
    ('{"data": [{"i": 0, "inferenceTimeSeconds": 0.001}, {"i": 1, "inferenceTimeSeconds": 0.003}]}', "$.data"),
    ('{"unit": "us", "run": {"times": [1000, 3000]}}', "$.run.times"),
    ('[{"Latency (ms)": 1, "time": 5e12}, {"Latency (ms)": 3, "time": 6e12}]', "$"),
    ('{"latencyMs": [1, 3], "computeMs": [0.5, 2]}', "$"),
    ('[{"gpu_time_ns": 1000000}, {"gpu_time_ns": 3000000}]', "$"),
]


@pytest.mark.parametrize(("text", "place"), OTHER_LAYOUTS)
def test_times_that_another_script_wrapped_are_read_in_their_unit(text: str, place: str) -> None:
    document = summarize(text)
    assert (document.n, document.layout, document.warmup_dropped) == (2, place, 0)
    assert (document.latency_ms.min, document.latency_ms.max) == (pytest.approx(1), pytest.approx(3))
    assert document.throughput_qps is None and document.images_per_s is None and document.host_walltime_s is None


def test_trtexecs_own_queries_under_a_key_have_all_their_figures() -> None:
    own, wrapped = made.make_times(300), b'{"run": {"times": ' + made.make_times(300) + b"}}"
    there, here = summarize(own), summarize(wrapped)
    assert here.latency_ms == there.latency_ms and here.throughput_qps == there.throughput_qps
    assert here.enqueue_ms == there.enqueue_ms and here.gpu_compute_total_s == there.gpu_compute_total_s


def test_what_is_taken_for_granted_of_other_layouts_is_noted() -> None:
    assert summarize('{"times": [1, 3]}').notes == ("no unit in times: read as ms, the unit of trtexec",)
    assert summarize('{"times_ms": [1, 3]}').notes == ()
    (note,) = summarize('[{"gpuComputeMs": 1, "d2hMs": 0.5}, {"gpuComputeMs": 2, "d2hMs": 0.5}]').notes
    assert "it is compute + d2h" in note
    document = summarize('{"fp16": {"latencies_us": [1, 2]}, "int8": {"latencies_us": [3, 4, 5]}}')
    assert document.n == 3
    assert document.notes == (
        "other lists of times in this file: figures are of $.int8.latencies_us, not of $.fp16.latencies_us",
    )
    with pytest.raises(UsageError, match="--warmup-ms 200: the file does not hold when its queries began"):
        summarize('{"times_ms": [1, 3]}', warmup_ms=200)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"times": [1, "x"]}', r"\$\.times, entry 1, key times: found a str; expected a number"),
        ('{"times": [1, true]}', "found a bool"),
        ('{"unit": "fortnights", "times": [1]}', "the unit 'fortnights'"),
        ('[{"latencyMs": 1}, {"other": 2}]', r"entry 1: found no key latencyMs \(keys there: other\)"),
        ('{"latency_ms": [1, 2], "compute_ms": [1]}', "2 of latency_ms, 1 of compute_ms"),
        ('{"latency_s": [1e300]}', "found latency of 1e\\+303 ms"),
    ],
)
def test_damage_in_other_layouts_is_named(text: str, found: str) -> None:
    with pytest.raises(ParseError, match=found):
        summarize(text)
