"""Options that verbs share reach a verb as one record each."""

from collections.abc import Iterator
from typing import Any

import click
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from enginebench import options
from enginebench.core.errors import BackendUnavailable, UsageError
from enginebench.core.names import parse_precision
from enginebench.core.records import MeasureSpec
from enginebench.door import FiniteRange, SecondsRange, program
from enginebench.engines.registry import read_engines
from enginebench.runs import request
from enginebench.runs.child import environments
from enginebench.runs.folder import RunRequest
from enginebench.runs.targets.sides import Side
from enginebench.verbs.bench import add_side
from enginebench.verbs.requests import (
    Opening,
    count_threads,
    make_measure,
    make_request,
    make_side_request,
    read_shapes,
)
from enginebench.verbs.run import RunOptions


class Anything(options.Timing, Opening, total=False):
    pass


def fill(**given: Any) -> Any:
    """The options of a verb: those that are given, else their defaults."""
    return options.fill(Anything, given)


COMMON: dict[str, Any] = {"threads": 3, "seed": 7, "input_shape": ("x:1x4",), "weights": "random", "input_size": 64}


@pytest.mark.parametrize(("given", "read"), [("20", (20, None)), (3, (3, None)), ("200ms", (None, 200))])
def test_warm_up_is_calls_or_a_time(given: str | int, read: tuple[int | None, int | None]) -> None:
    measure = make_measure(fill(warmup=given), 0)
    assert (measure.warmup, measure.warmup_ms) == read
    with pytest.raises(UsageError, match="--warmup -1: expected 0 or more calls, or milliseconds for trtexec"):
        make_measure(fill(warmup=-1), 0)


def test_defaults_are_those_of_the_measurement() -> None:
    assert make_measure(fill(), fill()["seed"]) == MeasureSpec(settle=0.02)
    assert make_measure(fill(), 0, margin=None) == MeasureSpec()
    assert count_threads(None) >= 1
    assert read_shapes(fill()) is None


def test_a_configuration_is_asked_for_with_all_that_was_given() -> None:
    measure = MeasureSpec(seed=7, time_limit_s=1.5, processes=1)
    made = make_request(
        "digits-mlp",
        fill(**COMMON),
        engines=read_engines("ort:opt=basic"),
        precisions=[parse_precision("int8@cpu")],
        batches=(2,),
        measure=measure,
    )
    assert (made.model, made.engines, made.batches) == ("digits-mlp", (("ort", {"opt": "basic"}),), (2,))
    assert made.precisions == (("int8", "cpu"),)
    assert made.measure == measure
    given = (made.device, made.threads, made.weights, made.input_size, made.input_shapes)
    assert given == ("cpu", 3, "random", 64, {"x": (1, 4)})


@pytest.mark.parametrize(
    ("engines", "precision", "reason"),
    [
        ("fake:env=nowhere,ort:env=nowhere", "fp32", "unknown environment 'nowhere'; known: [^;]*$"),
        ("pytorch-compile,ort-openvino", "fp8@static", "fp8@static runs only .*; pytorch-c.*\n- fp8.* on cuda; ort-op"),
        (
            "pytorch,ort,openvino",
            "fp8",
            "pytorch has no fp8, only fp32, fp16, bf16\n- ort .*: .*\n- openvino has no .*$",
        ),
        ("pytorch", "int4", "pytorch has no int4, only fp32, fp16, bf16; engines that have it: ort, openvino$"),
    ],
)
def test_what_no_engine_runs_is_refused_before_there_is_a_request(engines: str, precision: str, reason: str) -> None:
    pytest.importorskip("torch")
    asked = {"engines": read_engines(engines), "precisions": [parse_precision(precision)], "batches": None}
    with pytest.raises(BackendUnavailable, match=f"^no configuration can run here:[ \n-]+{reason}"):
        make_request("digits-mlp", fill(**COMMON), measure=MeasureSpec(), **asked)


@pytest.mark.parametrize(
    ("engine", "device", "cache", "reason"),
    [
        ("pytorch", "cuda:0", "cold", "--scope pipelined leaves none. Use hot"),
        ("pytorch", "cpu", "hot", "pytorch on cpu does not overlap copies .* pytorch-cudagraph"),
        ("trtexec", "cuda:0", "hot", "trtexec has copies of its own overlap"),
        ("tensorrt", "cuda:0", "hot", None),
    ],
)
@pytest.mark.feature("trtexec", "'trtexec'")
def test_what_cannot_overlap_is_refused_before_there_is_a_request(engine, device, cache, reason, monkeypatch) -> None:
    measure = MeasureSpec(scope="pipelined", cache=cache)
    monkeypatch.setattr(environments, "find_gpu_name", lambda index: None)
    shared = fill(**COMMON | {"device": device, "input_shape": ()})
    with pytest.raises(
        UsageError if reason else BackendUnavailable, match=reason or "no cuda:0 here: the driver shows"
    ):
        asked = {"engines": [(engine, {})], "precisions": [("fp32", None)], "batches": None}
        make_request("digits-mlp", shared, measure=measure, **asked)


def test_sides_are_asked_for_with_all_that_was_given() -> None:
    side = make_side_request(fill(**COMMON), 64)
    source = side.source
    given = (side.device, side.threads, source.weights, source.seed, source.input_size, source.input_shapes)
    assert given == ("cpu", 3, "random", 7, 64, {"x": (1, 4)})
    with pytest.raises(UsageError, match="--input-shape 'x:1x-4'"):
        make_side_request(fill(**COMMON | {"input_shape": ("x:1x-4",)}))


def test_a_verb_without_timeout_waits_as_long_as_the_others() -> None:
    default = options.list_options(RunOptions)["timeout"].default
    assert RunRequest(model="x", engines=(), measure=MeasureSpec()).timeout_s == default


def test_a_bench_has_one_request_of_both_sides() -> None:
    own = RunRequest(model="a.onnx", engines=(("ort", {}),), batches=(4,), threads=2, measure=MeasureSpec())
    side = Side(text="", engine=("openvino", {}), target="b.onnx", precision=("fp16", None))
    assert add_side(own, None).sides == [own]
    request = add_side(own, side)
    assert request.other is not None and request.sides == [own, request.other]
    assert (request.other.model, request.other.engines) == ("b.onnx", (("openvino", {}),))
    assert (request.other.batches, request.other.threads, request.other.precisions) == ((4,), 2, (("fp16", None),))
    with pytest.raises(UsageError, match="the stored result has batch 8, this side has 4; give --batch 8"):
        add_side(own, replace(side, batch=8))


def test_one_extra_may_hold_several_arguments_which_reach_trtexec_alone() -> None:
    assert request.name_settings(None, None, ("--a=4 --b", "'--c=d e'")) == {"run_extra": "--a=4 --b '--c=d e'"}
    with pytest.raises(UsageError, match=r"--extra .*No closing quotation"):
        request.name_settings(None, None, ("--a='4",))
    passed = request.pass_on([("ort", {}), ("trtexec", {"graph": "0"})], ("--verbose",))
    assert passed == [("ort", {}), ("trtexec", {"graph": "0", "run_extra": "--verbose"})]
    assert request.pass_on([("ort", {})], ()) == [("ort", {})]
    with pytest.raises(UsageError, match="--verbose: --extra and further arguments are for the engine trtexec, which"):
        request.pass_on([("ort", {})], ("--verbose",))


def test_an_option_said_twice_must_say_the_same() -> None:
    assert request.merge_options("e", {"a": "1"}, {"a": "1", "b": "2"}) == {"a": "1", "b": "2"}
    with pytest.raises(UsageError, match="e:a=1 contradicts a=2"):
        request.merge_options("e", {"a": "1"}, {"a": "2"})


def test_the_batch_is_that_of_the_shapes_unless_it_is_said() -> None:
    assert request.choose_batches(None, None) == (1,)
    assert request.choose_batches(None, {"x": (4, 8), "y": (4, 2)}) == (4,)
    assert request.choose_batches(None, {"x": (4, 8), "y": (3, 2)}) == (1,), "no telling which of them is the batch"
    assert request.choose_batches((1, 8), {"x": (8, 3)}) == (1, 8)
    assert request.choose_batches((8,), {"x": (1, 3)}) == (8,)
    with pytest.raises(UsageError, match=r"first axis of --input-shape is 4, but --batch is 1, 8"):
        request.choose_batches((1, 8), {"x": (4, 3)})


@pytest.mark.parametrize("text", ["gpu", "cuda:x", "cuda:", "cuda:-1", "cuda:0,1", ""])
def test_a_device_that_cannot_be_is_refused_before_anything_runs(text: str) -> None:
    with pytest.raises(UsageError, match="neither cpu nor cuda:N"):
        make_side_request(fill(device=text))


def walk_options(command: click.Command) -> Iterator[click.Option]:
    """Every option of a verb, and of the verbs under it."""
    yield from (p for p in command.params if isinstance(p, click.Option))
    for member in command.commands.values() if isinstance(command, click.Group) else ():
        yield from walk_options(member)


# Of the packages in plugins/, too, where they are installed.
OPTIONS = [
    (verb, option)
    for verb in program.list_commands(click.Context(program))
    if (command := program.get_command(click.Context(program), verb)) is not None
    for option in walk_options(command)
]


@pytest.mark.parametrize("text", ["nan", "NaN", "inf", "-inf", "1e999"])
def test_no_option_of_any_verb_takes_what_is_not_a_finite_number(text: str) -> None:
    taken = []
    for verb, option in OPTIONS:
        if option.callback is not None or isinstance(option.type, click.Path | click.File):
            continue
        try:
            value = option.type.convert(text, option, click.Context(click.Command(verb)))
        except click.BadParameter as error:
            assert option.opts[0] in error.format_message()
            continue
        if isinstance(value, float):
            taken.append(f"{verb} {option.opts[0]}")
    assert taken == []


@pytest.mark.feature("load")
@pytest.mark.feature("trtexec")
def test_the_walk_finds_the_options_of_all_verbs() -> None:
    found = {f"{verb} {option.opts[-1]}" for verb, option in OPTIONS if isinstance(option.type, FiniteRange)}
    assert {"diff --max-metric-drop", "load --qps", "parse --warmup-ms"} <= found


def test_a_whole_number_without_a_limit_of_its_own_fits_into_64_bits() -> None:
    assert options.Opt("", kind=int, ge=1).check(2**63 - 1) == 2**63 - 1
    with pytest.raises(UsageError, match="at least 1 and at most 9223372036854775807"):
        options.Opt("", kind=int, name="batch", ge=1).check(10**400)
    options.Opt("", kind=int, le=3).check(-(10**18))


def test_a_time_without_a_limit_of_its_own_fits_into_nanoseconds() -> None:
    assert options.Opt("", kind=float, gt=0).check(1e9) == 1e9
    with pytest.raises(UsageError, match="more than 0 and at most 1000000000"):
        options.Opt("", kind=float, name="p99_limit_ms", gt=0).check(1e15)


def list_ranges() -> list[tuple[str, click.Option]]:
    return [(verb, option) for verb, option in OPTIONS if isinstance(option.type, click.IntRange | click.FloatRange)]


@pytest.mark.parametrize(("verb", "option"), list_ranges(), ids=[f"{v} {o.opts[0]}" for v, o in list_ranges()])
def test_an_option_takes_its_bounds_and_nothing_beyond(verb: str, option: click.Option) -> None:
    kind = option.type
    assert isinstance(kind, click.IntRange | click.FloatRange)
    context = click.Context(click.Command(verb))
    step = 1 if isinstance(kind, click.IntRange) else 1e-6
    for bound, is_open, outward in ((kind.min, kind.min_open, -step), (kind.max, kind.max_open, step)):
        if bound is None:
            continue
        beyond = bound if is_open else bound + outward * max(1, abs(bound))
        with pytest.raises(click.BadParameter, match="range"):
            kind.convert(str(beyond), option, context)
        if not is_open:
            assert kind.convert(str(bound), option, context) == bound


def test_every_option_with_a_choice_refuses_another_by_its_words() -> None:
    chosen = [(verb, option) for verb, option in OPTIONS if isinstance(option.type, click.Choice)]
    assert len(chosen) > 10
    for verb, option in chosen:
        assert isinstance(option.type, click.Choice)
        with pytest.raises(click.BadParameter, match="nosuch") as refusal:
            option.type.convert("nosuch", option, click.Context(click.Command(verb)))
        assert all(repr(choice) in refusal.value.format_message() for choice in option.type.choices)


@pytest.mark.parametrize(
    ("text", "seconds"), [("3", 3), ("0.5", 0.5), ("200ms", 0.2), ("90s", 90), ("20m", 1200), ("1.5h", 5400)]
)
def test_every_option_of_seconds_takes_units(text: str, seconds: float) -> None:
    taking = [option for _, option in OPTIONS if isinstance(option.type, SecondsRange) and option.type.min != 1]
    assert {"--time-limit", "--duration", "--time-budget"} <= {option.opts[-1] for option in taking}
    assert {option.type.convert(text, option, click.Context(click.Command("run"))) for option in taking} == {seconds}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("soon", "is no time; expected seconds, or a time such as 200ms"),
        ("3 weeks", "is no time"),
        ("-1", "x>0"),
        ("0s", "x>0"),
    ],
)
def test_what_is_no_time_is_refused_with_what_is_one(text: str, why: str) -> None:
    done = CliRunner().invoke(program, ["run", "digits-mlp", "--time-limit", text])
    assert done.exit_code == 2 and why in done.output and "--time-limit" in done.output
