"""What `tune` found: the document, the text and the page."""

from __future__ import annotations
