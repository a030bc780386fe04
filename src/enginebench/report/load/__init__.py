"""What `load` measured: the document, the table, the pictures and the page."""

from __future__ import annotations
