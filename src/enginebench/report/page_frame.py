"""What every page of ours has in common: one file, its own scripts alone, tables and charts that can be saved."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from importlib import resources

from enginebench import __version__
from enginebench.report.charts import Spec
from enginebench.report.html import Html, element, embed_json, join


def assemble_page(
    title: str,
    parts: Sequence[str],
    *,
    specs: Mapping[str, Spec],
    bundle: str | None,
    footer: str = "",
    labels: Mapping[str, str] | None = None,
    script: str = "page.js",
) -> str:
    """A whole HTML document.

    Args:
        title: of the window.
        parts: what stands in the body.
        specs: name -> chart, of every place that `format_chart` made.
        bundle: JavaScript that defines `vegaEmbed`; None for a page without charts.
        footer: below everything.
        labels: row id -> what charts call it.
        script: the asset that makes the page move.
    """
    style = _read_asset("page.css")
    scripts = [*([_keep_element_open(bundle)] if bundle and specs else []), _read_asset(script)]
    body = join(
        *parts,
        element("footer", f"Made by EngineBench {__version__} from stored results. {footer}"),
        embed_json("charts", specs),
        embed_json("labels", labels or {}),
        *(Html(f"<script>{text}</script>") for text in scripts),
    )
    head = join(
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_write_policy(style, scripts)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        Html(f"<style>{style}</style>"),
    )
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>{body}</body></html>\n'


def format_chart(name: str, title: str, description: str, spec: Spec, *, heading: bool = True, row: str = "") -> Html:
    """A chart's place, its caption (the picture's own subtitle) and its buttons.

    Args:
        name: key among the specifications of the page, and name of the files that it is saved as.
        title: above it, unless `heading` is false.
        description: for those who cannot see it.
        spec: its specification.
        heading: whether the title is shown.
        row: label of the one row that it is about; it goes when the page's filter hides that row.
    """
    buttons = [
        element("button", kind, type="button", data_save=kind.lower(), aria_label=f"Save as {kind}: {title}")
        for kind in ("PNG", "SVG", "CSV")
    ]
    own = spec.get("title", {})
    caption = own.get("subtitle", "") if isinstance(own, dict) else ""
    return element(
        "figure",
        element("h3", title) if heading else None,
        element("div", class_="chart", data_chart=name, role="img", aria_label=description),
        element("figcaption", element("span", caption), element("span", *buttons, class_="save")),
        data_row=row or None,
    )


def wrap_table(table: Html, label: str) -> Html:
    """A table that scrolls by itself on a narrow screen, also by keyboard, with its CSV."""
    button = element("button", "CSV", type="button", class_="csv", aria_label=f"Save as CSV: {label}")
    return element(
        "div",
        element("div", table, class_="scroll", tabindex=0, role="region", aria_label=label),
        button,
        class_="table",
    )


def _read_asset(name: str) -> str:
    return resources.files("enginebench.report").joinpath("assets", name).read_text(encoding="utf-8")


def _keep_element_open(script: str) -> str:
    """A script in which no string ends its element. Source: HTML Living Standard, section 4.12.1.3."""
    return re.sub(r"<(?=/script|!--)", r"\\x3c", script, flags=re.IGNORECASE)


def _write_policy(style: str, scripts: Sequence[str]) -> str:
    """Nothing is loaded, and nothing runs but the scripts of this page. Source: W3C, Content Security Policy 3."""
    hashes = " ".join(_hash(script) for script in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src {_hash(style)}; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
