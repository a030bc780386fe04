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
    document = summarize(f"[{entry}, {other}, {entry}]")
    assert (len(document.layers), document.duplicates_merged, document.total_ms) == (2, 1, 6)
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
    ["", "hello", "[]", "{}", "null", "3", made.make_times().decode(), made.make_layers().decode(), "[" * 100_000,
     '[{"name": "a"}]', '{"a": {"b": 1}}'],
)  # fmt: skip
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
