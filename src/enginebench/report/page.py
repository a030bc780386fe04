"""Sections as one HTML file that opens anywhere, and as a piece of HTML for a notebook. Names stay text: autoescape.

A page loads nothing, and runs nothing but the scripts that its policy names by their hashes.
"""

import base64
import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import msgspec
from markupsafe import Markup

from enginebench import __version__
from enginebench.core.names import slug
from enginebench.core.text import clean_text
from enginebench.report.table import Chart, Notes, Section, Table


def format_page(
    title: str,
    sections: Sequence[Section],
    *,
    bundle: str | None = None,
    footer: str = "",
    labels: Mapping[str, str] | None = None,
    data: object = None,
    up: str = "",
    above: str = "The whole sweep",
    script: str | None = None,
) -> str:
    """A whole HTML document; `bundle`: JavaScript that defines `vegaEmbed`, None for a page without charts.

    `up`: the address of the page above this one, which is called `above`.
    """
    charts = {part.name: part.spec for section in sections for part in section.parts if isinstance(part, Chart)}
    style = _read_asset("page.css")
    # A script in which no string ends its element. Source: HTML Living Standard, section 4.12.1.3.
    library = re.sub(r"<(?=/script|!--)", r"\\x3c", bundle, flags=re.IGNORECASE) if bundle and charts else None
    scripts = [*([library] if library else []), script or _read_asset("page.js")]
    # Nothing is loaded, and nothing runs but the scripts of this page. Source: W3C, Content Security Policy 3.
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, *scripts)]
    own, *others = (f"'sha256-{digest}'" for digest in digests)
    policy = (
        f"default-src 'none'; script-src {' '.join(others)}; style-src {own}; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    page: str = _load("page.html").render(
        title=title,
        up=up,
        above=above,
        head=sections[0],
        sections=sections[1:],
        filters=_list_filters(sections),
        footer=f"Made by EngineBench {__version__} from stored results. {footer}",
        data={"charts": charts, "labels": labels or {}, **({"data": data} if data is not None else {})},
        policy=policy,
        style=Markup(style),
        scripts=[Markup(text) for text in scripts],
    )
    return page


def format_fragment(sections: Sequence[Section]) -> str:
    """The sections as HTML that loads nothing, with styles within the cells: a notebook's own lie over any others."""
    fragment: str = _load("fragment.html").render(sections=sections)
    return fragment


@cache
def _load(name: str) -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # every command would pay for its import

    environment = Environment(
        loader=PackageLoader("enginebench.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: clean_text(value) if type(value) is str else value,
    )
    environment.filters |= {"slug": slug, "json": embed_json, "repr": repr}
    environment.filters |= {"ruler": _make_ruler, "longest": _find_longest, "lines": _group_lines}
    environment.tests |= {
        kind.__name__.lower(): lambda part, kind=kind: isinstance(part, kind) for kind in (Table, Notes, Chart)
    }
    return environment.get_template(name)


def _list_filters(sections: Sequence[Section]) -> dict[str, list[str]]:
    """Return name -> values to filter by, for each key in which the rows of the page's tables differ."""
    choices: dict[str, dict[str, None]] = {}
    tables = [part for section in sections for part in section.parts if isinstance(part, Table)]
    for table in tables:
        if table.keys is None:
            continue
        for row in table.rows:
            for name, value in table.keys(row).items():
                choices.setdefault(name, {})[value] = None
    return {name: list(values) for name, values in choices.items() if name != "label" and len(values) > 1}


class _Ruler:
    """A logarithmic axis for the ratios of a table, which always includes 1."""

    def __init__(self, values: Sequence[float]) -> None:
        logs = [math.log(value) for value in (1.0, *values) if 0 < value < math.inf]
        self.low, self.wide = min(logs), max(max(logs) - min(logs), math.log(1.1))

    def at(self, value: float) -> str:
        """Return the position of a ratio, in per cent of the width; both sides have a margin for the marks."""
        return f"{4 + 92 * (math.log(value) - self.low) / self.wide:.1f}%"


def _make_ruler(table: Table) -> _Ruler | None:
    """Make the ruler of the column that has spans, if there is one."""
    spans = [column.span(row) for column in table.columns if column.span for row in table.rows]
    values = [value for span in spans if span for value in span if value is not None]
    return _Ruler(values) if values else None


def _find_longest(table: Table) -> float:
    """Return the value whose bar fills its cell."""
    values = [column.value(row) for column in table.columns if column.bar and column.value for row in table.rows]
    return max((value for value in values if isinstance(value, float) and math.isfinite(value)), default=1.0)


def _group_lines(notes: Notes) -> list[tuple[str, list[str]]]:
    """Group lines by label, each label once."""
    groups: list[tuple[str, list[str]]] = []
    for label, text in notes.lines:
        if groups and groups[-1][0] == label and label:
            groups[-1][1].append(text)
        else:
            groups.append((label, [text]))
    return groups


def embed_json(data: object) -> Markup:
    """Encode JSON so that no character can end the enclosing element."""
    text = msgspec.json.encode(data).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


@cache
def _read_asset(name: str) -> str:
    return resources.files("enginebench.report").joinpath(f"assets/{name}").read_text(encoding="utf-8")
