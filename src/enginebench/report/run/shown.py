"""Choose the configurations of a large run that a page, a markdown file and a terminal show."""

from itertools import chain, zip_longest

from msgspec.structs import replace

from enginebench.report.run.head import TIES_NAMED
from enginebench.report.run.rows import Row, RunDocument, group_rows
from enginebench.stats.headline import Headline

# More lines than this are not read, and each has a panel in the charts. All configurations are in table.csv and
# report.json.
MOST_SHOWN = 100


def shorten_document(document: RunDocument, most: int = MOST_SHOWN) -> RunDocument:
    """Keep the configurations that the head names, then the fastest of each setting, `most` in all.

    A note counts what is left out. A smaller document is returned unchanged.
    """
    if len(document.rows) <= most:
        return document
    indices = {row.id: index for index, row in enumerate(document.rows)}
    kept: set[str] = set()
    headlines: list[Headline] = []
    for headline in document.headlines:
        named = {name for name in _list_named(headline) if name in indices}
        if len(kept | named) > most:
            break
        kept |= named
        headlines.append(headline)
    fastest: chain[Row | None] = chain.from_iterable(zip_longest(*group_rows(document.rows)))
    for row in filter(None, fastest):
        if len(kept) == most:
            break
        kept.add(row.id)
    rows = tuple(row for row in document.rows if row.id in kept)
    text = f"Shown: {len(rows)} of {len(document.rows)} configurations"
    if len(headlines) < len(document.headlines):
        text += f", and what to use in {len(headlines)} of {len(document.headlines)} settings"
    note = f"{text}. table.csv and report.json hold all of them"
    return replace(document, rows=rows, headlines=tuple(headlines), notes=(*document.notes, note))


def _list_named(headline: Headline) -> list[str]:
    """List the configurations that the head names for one setting."""
    rejected = headline.rejected.id if headline.rejected else None
    slower = [one.id for one in headline.behind[:TIES_NAMED]]
    named = (headline.id, headline.baseline, headline.strict, rejected, *headline.near[:TIES_NAMED], *slower)
    return [name for name in named if name is not None]
