"""HTML elements from data: text is escaped unless it was made here."""

from __future__ import annotations

from html import escape

import msgspec

from enginebench.core.text import clean_text

# Elements that have no content and no end tag. Source: HTML Living Standard, section 13.1.2.
_VOID = frozenset({"meta", "input", "br"})


class Html(str):
    """Markup; any other string is text, and is escaped before it stands between or inside tags."""

    __slots__ = ()


def element(tag: str, *children: str | None, **attributes: str | int | float | bool | None) -> Html:
    """`<tag attributes>children</tag>`, everything escaped but `Html`.

    Args:
        tag: a name that our own code wrote.
        children: text or elements; None is left out.
        attributes: `class_` stands for `class`, `data_value` for `data-value`; None and False are left out, True has
            no value.
    """
    opening = tag + "".join(_attribute(name, value) for name, value in attributes.items())
    if tag in _VOID:
        return Html(f"<{opening}>")
    return Html(f"<{opening}>{join(*children)}</{tag}>")


def join(*children: str | None) -> Html:
    """The children one after the other."""
    return Html("".join(text if isinstance(text, Html) else escape_text(text) for text in children if text is not None))


def escape_text(text: str) -> str:
    """`text` without control characters, and so that no character of it is markup."""
    return escape(clean_text(text), quote=True)


def _attribute(name: str, value: str | int | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = name.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape_text(str(value))}"'


def embed_json(identity: str, data: object) -> Html:
    """A data block that scripts read: JSON in which no character can end the element."""
    text = msgspec.json.encode(data).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Html(f'<script type="application/json" id="{escape_text(identity)}">{text}</script>')
