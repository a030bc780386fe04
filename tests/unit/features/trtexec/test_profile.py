"""Layer profiles: all layouts, broken names, duplicates, nan."""

from pathlib import Path

import pytest

import trtexec_artifacts as made
from enginebench.core.errors import ParseError
from enginebench.stats.layer_records import ProfileDocument
from enginebench.stats.plans.profile import read_profile, summarize_profile

FILE = Path("profile.json")


def summarize(text: str | bytes, end_to_end_ms: float | None = None) -> ProfileDocument:
    text = text.decode() if isinstance(text, bytes) else text
    return summarize_profile(read_profile(text, FILE), FILE, end_to_end_ms=end_to_end_ms)


def test_slowest_first_with_shares_and_the_number_of_iterations() -> None:
    document = summarize(made.make_profile(), end_to_end_ms=0.2)
    assert [layer.name for layer in document.layers] == list(reversed(made.LAYERS))
    assert document.count == 51
    assert document.total_ms == pytest.approx(sum(0.8 + 0.3 * i for i in range(5)))
    assert document.layers[0].share == pytest.approx(2.0 / document.total_ms)
    assert document.average_ms == pytest.approx(document.total_ms / 51, rel=1e-5)
    assert document.remainder_ms == pytest.approx(0.2 - document.total_ms / 51, rel=1e-5)
    assert "single iteration" in summarize(made.make_profile(count=1)).notes[0]


def test_profiles_of_7_have_no_median_and_may_have_keys_of_others() -> None:
    document = summarize(made.make_profile(median=False))
    assert len(document.layers) == 5 and all(layer.median_ms is None for layer in document.layers)
    text = made.make_profile(median=False).decode().replace('"timeMs"', '"kind" : 3, "timeMs"')
    assert len(summarize(text).layers) == len(made.LAYERS)


NAMES = ['/a"b"/Conv', "/block\\back/new\\n", "tab\there", "line\nend", 'x", "timeMs" : 1', "üñï", "", "{}[],:", '"']


def test_names_are_taken_as_they_stand_unless_json_wrote_them() -> None:
    document = summarize(made.make_profile(NAMES))
    assert [layer.name for layer in document.layers] == list(reversed(NAMES))
    assert document.names_repaired == 4
    assert "do" in document.notes[0]
    import json

    layers = [{"name": 'a"b\\c', "timeMs": 2.0, "averageMs": 1.0, "percentage": 100.0}]
    document = summarize(json.dumps([{"count": 2}, *layers]))
    assert (document.layers[0].name, document.names_repaired, document.count) == ('a"b\\c', 0, 2)


def test_what_the_sums_leave_out() -> None:
    entry = '{"name": "a", "timeMs": 2, "averageMs": 1}'
    other = '{"name": "a", "timeMs": 4, "averageMs": 2}'
    for text in (f"[{entry}, {other}, {entry}]", f'{{"layers": [{entry}, {other}], "copy": [{entry}]}}'):
        document = summarize(text)
        assert (len(document.layers), document.duplicates_merged, document.total_ms) == (2, 1, 6)
        assert document.notes == ("1 entry merged: each has the name and the average of another",)
    text = '[{"name": "a", "timeMs": 2, "averageMs": nan}, {"name": "b", "timeMs": 2, "averageMs": 1}]'
    document = summarize(text)
    assert document.average_ms == 1
    assert document.notes == ("1 layer with a time that is nan or inf, which the sums leave out",)


@pytest.mark.parametrize("word", ["nan", "-nan", "inf", "-nan(ind)"])
def test_nan_where_nothing_was_timed(word: str) -> None:
    body = f'"timeMs" : 0, "averageMs" : {word}, "medianMs" : 0, "percentage" : {word}'
    document = summarize(f'[\n  {{ "count" : 0 }}\n, {{ "name" : "a", {body} }}\n]\n')
    (layer,) = document.layers
    assert (layer.total_ms, layer.average_ms, layer.share, document.nonfinite) == (0, None, None, 1)
    assert document.average_ms is None and document.notes == ("all times are 0: no percentages",)
    rewritten = summarize(
        f'[{{"name": "a", "timeMs": 0, "averageMs": {word}}}, {{"name": "b", "timeMs": 1, "averageMs": 1}}]'
    )
    assert rewritten.total_ms == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "[]",
        "{}",
        "null",
        "3",
        made.make_times().decode(),
        made.make_layers().decode(),
        "[" * 100_000,
        '[{"name": "a"}]',
        '{"a": {"b": 1}}',
    ],
)
def test_other_files_are_refused(text: str) -> None:
    with pytest.raises(ParseError, match=r"profile\.json"):
        summarize(text)


KEYS = ("name", "timeMs", "averageMs", "medianMs", "percentage")
QUOTED = ('say "a" \\ b', "c")


@pytest.mark.parametrize(
    ("names", "key", "place"),
    [*((made.LAYERS, key, "layer 0") for key in KEYS[1:4]), *((QUOTED, key, "line 3") for key in KEYS)],
)
def test_a_renamed_key_names_itself_and_those_found(names: tuple[str, ...], key: str, place: str) -> None:
    text = made.make_profile(names).decode().replace(f'"{key}"', '"newMs"')
    with pytest.raises(ParseError, match=rf"{place}: found no key {key} \(keys there: .*newMs"):
        summarize(text)


OTHER_LAYOUTS = [
    '{"layers": [{"name": "a", "timeMs": 1, "averageMs": 0.5}, {"name": "b", "timeMs": 3, "averageMs": 1.5}]}',
    '{"profile": [{"layerName": "a", "time_us": 1000, "avg_us": 500}, '
    '{"layerName": "b", "time_us": 3000, "avg_us": 1500}]}',
    '{"x": {"y": [{"name": "a", "totalMs": 1, "avgMs": 0.5}, {"name": "b", "totalMs": 3, "avgMs": 1.5}]}}',
    '{"a": {"total_ms": 1, "average_ms": 0.5}, "b": {"total_ms": 3, "average_ms": 1.5}}',
    '{"layers": {"a": {"time_s": 0.001, "avg_s": 0.0005}, "b": {"time_s": 0.003, "avg_s": 0.0015}}}',
    '{"name": ["a", "b"], "time_ms": [1, 3], "average_ms": [0.5, 1.5]}',
    '{"count": 2, "profile": [{"name": "a", "average_us": 500}, {"name": "b", "average_us": 1500}]}',
    '{"iterations": 2, "layers_us": {"a": 1000, "b": 3000}}',
    '{"unit": "us", "layers": [{"name": "a", "time": 1000, "mean": 500}, {"name": "b", "time": 3000, "mean": 1500}]}',
]


@pytest.mark.parametrize("text", OTHER_LAYOUTS)
def test_layers_that_another_script_wrapped_are_read_in_their_unit(text: str) -> None:
    document = summarize(text)
    found = [(layer.name, layer.total_ms, layer.average_ms) for layer in document.layers]
    assert found == [("b", pytest.approx(3), pytest.approx(1.5)), ("a", pytest.approx(1), pytest.approx(0.5))]
    assert document.notes == ()


def test_what_is_taken_for_granted_of_other_layouts_is_noted() -> None:
    averages = summarize('[{"name": "a", "averageMs": 1}, {"name": "b", "averageMs": 3}]')
    assert averages.layers[0].share == 0.75 and averages.average_ms == 4 and "averages only" in averages.notes[0]
    assert "no count of iterations" in summarize('{"layers_ms": {"a": 1, "b": 3}}').notes[0]
    assert "no unit in time" in summarize('[{"name": "a", "time": 1, "averageMs": 1}]').notes[0]
    one, two = '{"name": "a", "averageMs": 1}', '{"name": "b", "averageMs": 1}'
    several = summarize(
        f'{{"fp16": {{"layers": [{one}]}}, "int8": {{"layers": [{one}, {two}]}}, "bf16": [{two}, {two}]}}'
    )
    assert len(several.layers) == 2 and several.duplicates_merged == 3
    others = summarize(f'{{"fp16": {{"layers": [{two}]}}, "int8": {{"layers": [{one}, {one}]}}}}').notes
    assert "other profiles in this file: figures are of $.int8.layers, not of $.fp16.layers" in others


def test_times_below_zero_are_noted() -> None:
    layers = '{"name": "a", "timeMs": 4, "averageMs": -1}, {"name": "b", "timeMs": 2, "averageMs": 1}'
    assert summarize(f'[{{"count": 2}}, {layers}]').notes == (
        "1 time below zero, which no clock gives: the figures contain them",
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"mean_ms": 3, "p50_ms": 2}', r"no layer with a name and a time \(keys there: mean_ms, p50_ms\)"),
        ('{"summary": {"mean_ms": 3}}', "keys there: summary, mean_ms"),
        ('[{"name": "a", "averageMs": 1}, {"foo": 2}]', r"entry 1: found no key name, averageMs \(keys there: foo\)"),
        ('[{"name": "a", "averageMs": 1}, {"name": "b", "averageMs": "x"}]', "entry 1, key averageMs: found a str"),
        ('{"name": ["a", "b"], "average_ms": [1]}', "2 of name, 1 of average_ms"),
    ],
)
def test_what_is_no_profile_is_refused_with_its_keys(text: str, found: str) -> None:
    with pytest.raises(ParseError, match=found):
        summarize(text)
