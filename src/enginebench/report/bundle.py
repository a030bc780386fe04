"""The JavaScript of Vega, as one file that needs no network: made once by vl-convert, then kept in the user's cache."""

from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from enginebench.core.errors import ArtifactError, MissingDependency
from enginebench.core.store import find_cache, write_atomic
from enginebench.report.charts import INSTALL

# What the page calls; the rest of the bundle stays out of the global scope.
_SNIPPET = "window.vegaEmbed = vegaEmbed;"
# Its last line in the cache: a file that was cut has none.
_END = "\n// end of the chart bundle\n"


def load_bundle(cache: Path | None = None) -> str:
    """Vega, Vega-Lite and Vega-Embed as JavaScript that defines `vegaEmbed`."""
    try:
        import vl_convert
    except ImportError as error:
        raise MissingDependency("vl-convert, which holds the charts' JavaScript,", INSTALL) from error
    path = bundle_path(cache or find_cache())
    with suppress(OSError, UnicodeDecodeError):
        if (stored := path.read_text(encoding="utf-8")).endswith(_END):
            return stored  # a file that another program cut or emptied is made again
    bundle: str = vl_convert.javascript_bundle(snippet=_SNIPPET) + _END
    with suppress(ArtifactError):
        write_atomic(path, bundle.encode())
    return bundle


def bundle_path(cache: Path) -> Path:
    """Where the bundle lies in a folder of the cache."""
    return cache / f"vega-{version('vl-convert-python')}.js"
