"""Logs: every figure, every version, every way in which a log arrives damaged."""

from pathlib import Path

import pytest
from msgspec.structs import replace

import trtexec_artifacts as made
from enginebench.core.errors import ParseError
from enginebench.features.trtexec import log
from enginebench.features.trtexec.log import complete_run, read_log
from enginebench.features.trtexec.records import LogRun
from enginebench.stats.plans.source import decode_text

LOG = Path("run.log")


def read_one(text: str) -> LogRun:
    runs = read_log(text, LOG).runs
    assert len(runs) == 1
    return runs[0]


def test_rows_of_8_0_are_read_and_7_is_named() -> None:
    row = "End-to-End Host Latency: min = 1 ms, max = 3 ms, mean = 2 ms, median = 2 ms, percentile(99%) = 3 ms"
    run = read_one(f"{made.STAMP} [I] {row}\n")
    assert run.end_to_end_ms is not None and run.end_to_end_ms.percentiles == {"99": 3}
    run = read_one(made.make_log7())
    assert (run.status, run.latency_ms, run.throughput_qps) == ("passed", None, None)
    assert run.notes == ("figures as trtexec 7 and older print them, which are not read; 8 to 11 are",)
    # It counts images in place of queries, and none of an explicit batch.
    assert (run.queries, run.warmup_queries) == (None, None)


@pytest.mark.parametrize(
    "lines",
    [
        "GPU Compute\nmin: 4.125 ms\nmax: 7 ms",
        "min: 4.25 ms (end to end 4.5 ms)",
        "percentile: 5.5 ms at 99% (end to end 6.125 ms at 99%)",
        "Average over 10 runs is 0.66 ms (host walltime is 0.81 ms, 99% percentile time is 0.67).",
    ],
)
def test_a_piece_of_an_older_summary_is_named_as_not_read(lines: str) -> None:
    text = "".join(f"{made.STAMP} [I] {line}\n" for line in lines.split("\n"))
    for piece in (text, f"&&&& RUNNING TensorRT.trtexec # trtexec --onnx=m\n{lines}\n"):
        assert ["trtexec 7 and older" in note for note in read_one(piece).notes] == [True]
    assert read_one(made.make_log()).notes == ()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
def test_any_shell_may_have_saved_it(encoding: str, ends: str) -> None:
    data = made.make_log().replace("\n", ends).encode(encoding)
    (run,) = read_log(decode_text(data), LOG).runs
    assert (run.status, run.queries, run.device) == ("passed", 50, "NVIDIA H200")


def test_plugin_prints_and_colours_do_no_harm() -> None:
    lines = made.make_log().splitlines()
    noisy = [f"[plugin] working{line}" if i % 3 == 0 else line for i, line in enumerate(lines)]
    noisy = [text for line in noisy for text in (line, "Throughput: 5 qps", "Latency: min = 9 ms, max = 9 ms")]
    run = read_one("\n".join(noisy))
    clean = read_one(made.make_log())
    assert (run.latency_ms, run.throughput_qps, run.status) == (clean.latency_ms, clean.throughput_qps, "passed")
    text = made.make_log().replace("[I]", "\x1b[32m[I]\x1b[0m").replace("[I]\x1b[0m ", "[I] \x1b[0m")
    coloured = "\x1b]0;title\x07" + text.replace("\x1b[32m[I] \x1b[0m", "[I] ")
    coloured = coloured.replace("[11/", "\x1b[1m[11/").replace("&&&&", "\x1b[31;1m&&&&")
    assert read_log(decode_text(coloured.encode()), LOG).runs[0].latency_ms == read_one(made.make_log()).latency_ms


@pytest.mark.parametrize("share", range(5, 100, 5))
def test_cut_anywhere_it_still_reads(share: int) -> None:
    text = made.make_log()
    run = read_one(text[: len(text) * share // 100])
    assert run.status == "unknown" and run.version == "10.16.0"


@pytest.mark.parametrize(
    ("printed", "value", "noted"),
    [
        ("1.2e+06", 1.2e6, ()),
        ("9.5e-05", 9.5e-5, ()),
        ("inf", None, ("throughput_qps = inf",)),
        ("nan", None, ("throughput_qps = nan",)),
        ("-nan(ind)", None, ("throughput_qps = -nan(ind)",)),
        ("1e999", None, ("throughput_qps = 1e999",)),
    ],
)
def test_scientific_inf_and_nan(printed: str, value: float | None, noted: tuple[str, ...]) -> None:
    run = read_one(f"{made.STAMP} [I] Throughput: {printed} qps\n")
    assert (run.throughput_qps, run.nonfinite) == (value, noted)


@pytest.mark.parametrize(
    ("figure", "written"), [("0.5 ms", "0,5 ms"), ("0.5 ms", "500 us"), ("2579 qps", "2579,1 qps")]
)
def test_a_summary_row_that_cannot_be_read_is_no_empty_column(figure: str, written: str) -> None:
    head = f"{made.STAMP} [I] "
    text = f"{head}Throughput: 2579 qps\n{head}Latency: min = 0.5 ms, max = 2 ms\n"
    assert read_one(text).notes == ()
    (note,) = read_one(text.replace(figure, written)).notes
    assert "1 row of the summary could not be read whole" in note and written in note


def test_build_options_of_a_loaded_engine_and_its_size() -> None:
    lines = ["=== Build Options ===", "Precision: FP32", "Load engine: a.plan", ""]
    run = read_one("".join(f"{made.STAMP} [I] {line}\n" for line in lines))
    assert (run.precision, run.model, run.loads_plan) == (None, "a.plan", True)
    assert run.notes == ("the engine was loaded: neither its precision nor the options of its build are in the log",)
    lines = ["Created engine with size: 0.1458 MiB", "Engine built in 0.300395 sec."]
    run = read_one("".join(f"{made.STAMP} [I] {line}\n" for line in lines))
    assert (run.engine_bytes, run.build_s) == (round(0.1458 * 2**20), 0.300395)
    empty = read_one(f"{made.STAMP} [I] Created engine with size: 0 MiB\n")
    assert empty.engine_bytes == 0 and "size 0" in empty.notes[0]


def test_several_runs_in_one_file_with_banners_or_without() -> None:
    first, second = made.make_log(n=50, command="trtexec a"), made.make_log(110100, 106, n=60, command="trtexec b")
    cut = made.make_log(n=70, verdict=None, command="trtexec c")
    runs = read_log(first + cut + second, LOG).runs
    assert [(r.queries, r.status, r.parent) for r in runs] == [
        (50, "passed", None),
        (70, "unknown", None),
        (60, "passed", None),
    ]
    assert [r.first_line for r in runs] == [1, 1 + first.count("\n"), 1 + (first + cut).count("\n")]
    bodies = ["\n".join(made.make_log(n=n).splitlines()[1:-1]) for n in (10, 20)]
    assert [run.queries for run in read_log("\n".join(bodies), LOG).runs] == [10, 20]


def test_processes_of_one_command_have_a_joint_figure() -> None:
    logs = [made.make_log(seed=seed) for seed in (1, 2, 3)]
    document = read_log("".join(logs), LOG)
    medians = sorted(run.latency_ms.median or 0.0 for run in document.runs if run.latency_ms)
    joint = document.joint
    assert joint is not None and joint.latency_ms is not None and joint.runs == 3
    assert (joint.low_ms, joint.latency_ms.median, joint.high_ms) == tuple(medians)
    assert joint.latency_ms.max == max(run.latency_ms.max or 0.0 for run in document.runs if run.latency_ms)
    assert read_log(logs[0] + made.make_log(command="trtexec other"), LOG).joint is None


@pytest.mark.parametrize(("printed", "images"), [("Explicit", 4), ("1", 4), ("4", 1)])
def test_images_in_a_second_count_the_batch_once(printed: str, images: int) -> None:
    run = read_log(made.make_log().replace("Batch: Explicit", f"Batch: {printed}"), LOG).runs[0]
    full = complete_run(replace(run, batch=4))
    assert full.images_per_s == images * (run.throughput_qps or 0.0)
    assert full.latency_ms is not None and full.latency_ms.percentiles["50"] == full.latency_ms.median


def make_tuning() -> str:
    parent = "trtexec --onnx=m --tuneBuildRoutes=x"
    head = f"&&&& RUNNING TensorRT.trtexec [TensorRT v110100] [b106] # {parent}\n"
    good = made.make_log(110100, 106, n=51, command="trtexec --onnx=m --setBuildRoute=a")
    bad = made.make_log(110100, 106, verdict=None, command="trtexec --onnx=m --setBuildRoute=b")
    return (
        f"{head}&&&& TASK_BEGIN [iter=0] BuildRoute = 'a'\n{good}&&&& TASK_END [iter=0] BuildRoute = 'a'\n"
        f"&&&& TASK_BEGIN [iter=1] BuildRoute = 'b'\n{bad}&&&& TASK_ABORT [iter=1] BuildRoute = 'b'\n"
        f"{made.STAMP} [I] Tuning summary: 1 / 2 iterations succeeded.\n"
        f"&&&& PASSED TensorRT.trtexec [TensorRT v110100] [b106] # {parent}\n"
        f"{made.STAMP} [W] Iteration [1] failed: child crashed\n"
    )


def test_a_tuning_run_is_judged_by_its_own_banner_and_no_run_that_a_log_is_about() -> None:
    runs = read_log(make_tuning(), LOG).runs
    assert [(r.status, r.parent) for r in runs] == [("passed", None), ("passed", 0), ("failed", 0)]
    assert runs[0].warnings == ("Iteration [1] failed: child crashed",)
    assert runs[0].latency_ms is None and runs[1].queries == 51
    assert ["a tuning run" in note for run in runs for note in run.notes] == [True]
    text = made.make_log(n=50, command="a") + made.make_log(n=60, command="b")
    text += "&&&& RUNNING TensorRT.trtexec [TensorRT v8601] # c\n"
    assert read_log(text, LOG).choose_run().queries == 60
    assert read_log(make_tuning(), LOG).choose_run().parent is None


@pytest.mark.parametrize("text", ["hello\nworld\n", "\n\n", "{}", "Latency is high today: min = 1"])
def test_what_is_no_log_is_refused_with_what_was_found(text: str) -> None:
    with pytest.raises(ParseError, match=r"run\.log, line 1: found no line that trtexec writes"):
        read_log(text, LOG)


def test_a_line_of_the_driver_is_an_error_behind_whatever_a_container_prints() -> None:
    text = "2026-11-21T01:02:03Z &&&& RUNNING TensorRT.trtexec # x\n2026-11-21T01:02:04Z Cuda failure: 35\n"
    (run,) = read_log(text, Path("x")).runs
    assert run.errors == ("Cuda failure: 35",)


FAILED_PARSE = f"""\
&&&& RUNNING TensorRT.trtexec [TensorRT v8600] # trtexec --onnx=m.onnx
{made.STAMP} [I] === Model Options ===
{made.STAMP} [I] Format: ONNX
{made.STAMP} [I] Model: m.onnx
{made.STAMP} [I]
{made.STAMP} [E] [TRT] ModelImporter.cpp:768: While parsing node number 3 [Pad -> "y"]:
{made.STAMP} [E] [TRT] ModelImporter.cpp:774: ERROR: ModelImporter.cpp:195 In function parseGraph:
[6] Invalid Node - Pad_3
[shuffleNode.cpp::symbolicExecute::392] Error Code 4: Internal Error (a shape tensor)

loading of plugins ended
{made.STAMP} [E] Engine set up failed
&&&& FAILED TensorRT.trtexec [TensorRT v8600] # trtexec --onnx=m.onnx
"""
CAUSE = (
    "ModelImporter.cpp:774: ERROR: ModelImporter.cpp:195 In function parseGraph: [6] Invalid Node - Pad_3 "
    "[shuffleNode.cpp::symbolicExecute::392] Error Code 4: Internal Error (a shape tensor)"
)


@pytest.mark.parametrize("stamp", [f"{made.STAMP} ", ""])
@pytest.mark.parametrize("mark", ["", "# ", "  // ", "> ", "    "])
def test_a_log_that_is_quoted_says_what_the_log_says(mark: str, stamp: str) -> None:
    lines = FAILED_PARSE.replace(f"{made.STAMP} ", stamp).splitlines()
    run = read_one("import os\n\nrun('m.onnx')\n" + "".join(f"{mark}{line}".rstrip() + "\n" for line in lines))
    assert (run.status, run.status_reason, run.model) == ("failed", "Engine set up failed", "m.onnx")
    assert run.errors == (
        'ModelImporter.cpp:768: While parsing node number 3 [Pad -> "y"]:',
        CAUSE,
        "Engine set up failed",
    )
    passed = made.make_log().replace(f"{made.STAMP} ", stamp).splitlines()
    assert read_one("".join(f"{mark}{line}\n" for line in passed)).latency_ms == read_one(made.make_log()).latency_ms


def test_levels_without_stamps_are_another_tools_where_no_banner_is() -> None:
    with pytest.raises(ParseError, match="no line that trtexec writes"):
        read_log("[I] Loading model\n[E] Could not load it\n", LOG)


def test_the_parsers_text_of_older_versions_is_an_error_without_a_prefix() -> None:
    parser = "While parsing node number 0 [Conv]:\nERROR: ModelImporter.cpp:296 In function importModel:\n"
    text = f"{parser}[5] Assertion failed: tensors.count(input_name)\n{made.STAMP} [E] Failed to parse onnx file\n"
    run = read_one(f"{text}&&&& FAILED TensorRT.trtexec # trtexec --onnx=m\n")
    cause = parser.replace("\n", " ") + "[5] Assertion failed: tensors.count(input_name)"
    assert run.errors == (cause, "Failed to parse onnx file")


@pytest.mark.parametrize(
    ("command", "lines", "status", "errors", "reason"),
    [
        (
            "trtexec --device=9",
            f"{made.STAMP} [I] Cannot find device ID 9!",
            "failed",
            ("Cannot find device ID 9!",),
            "ended by: Cannot find device ID 9!",
        ),
        (
            "trtexec --infStreams=0",
            "Segmentation fault (core dumped)",
            "failed",
            ("Segmentation fault (core dumped)",),
            "ended by: Segmentation fault",
        ),
        ("trtexec --onnx=m --fp16", "=== Help ===", "failed", (), "an option was refused: help was printed"),
        (
            "trtexec --onnx=m --fp16",
            f"=== Help ===\n{made.STAMP} [E] Unknown option: --fp16 ",
            "failed",
            ("Unknown option: --fp16",),
            "ended by: Unknown option: --fp16",
        ),
        ("trtexec --help", "=== Help ===", "unknown", (), "only help was printed"),
        ("trtexec", "=== Help ===", "unknown", (), "only help was printed"),
    ],
)
def test_a_run_without_closing_banner_says_what_its_lines_hold(
    command: str, lines: str, status: str, errors: tuple[str, ...], reason: str
) -> None:
    run = read_one(f"&&&& RUNNING TensorRT.trtexec [TensorRT v110100] [b106] # {command}\n{lines}\n")
    assert (run.status, run.errors) == (status, errors)
    assert run.status_reason is not None and reason in run.status_reason


def test_a_failed_run_whose_errors_went_elsewhere_says_so() -> None:
    command = "[TensorRT v8601] # trtexec --foo"
    run = read_one(f"&&&& RUNNING TensorRT.trtexec {command}\n&&&& FAILED TensorRT.trtexec {command}\n")
    assert run.status_reason is not None and "no line says why; errors go to another pipe" in run.status_reason
    run = read_one(f"&&&& RUNNING TensorRT.trtexec {command}\n=== Help ===\n&&&& PASSED TensorRT.trtexec {command}\n")
    assert run.notes == ("only help was printed: nothing was built or timed",)


def test_a_message_is_not_read_again_for_each_line_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    monkeypatch.setattr(log, "has_open_bracket", lambda message: read.append(message) or True)
    run = read_one(f"{made.STAMP} [E] a dimension is wrong (\n" + "\n" * 100 + "of x\n" * 1000)
    assert 0 < len(read) <= 50
    assert run.errors[0].startswith("a dimension is wrong (")


def test_values_of_one_key_are_joined_in_their_order() -> None:
    lines = [f"{made.STAMP} [I] {text}\n" for text in ("=== Model Options ===", *(f"Input: {x}" for x in "aabab"))]
    assert read_one("".join(lines)).options["Model Options"]["Input"] == "a; b; a; b"
