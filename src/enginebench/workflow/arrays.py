"""Arrays of a run in files, for what passes between its processes."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from enginebench.core.errors import ParseError
from enginebench.core.store import write_atomic

if TYPE_CHECKING:
    from enginebench.core.protocols import Array

ARRAYS = "an .npz file of plain arrays"


def save_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Stores arrays as .npz, atomically."""
    import numpy as np

    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    write_atomic(path, buffer.getvalue())


def load_arrays(path: Path) -> dict[str, Array]:
    """The arrays of an .npz file.

    Raises:
        ParseError: it is no .npz, is damaged, or holds pickled objects, which are never loaded.
    """
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError as error:
        raise ParseError(path, "", "no such file", ARRAYS) from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, AttributeError, KeyError) as error:
        # NumPy's own words would advise to unpickle, which can run code that lies in the file.
        pickled = "pickle" in str(error)
        found = "pickled objects, which are never loaded, or no arrays at all" if pickled else f"damage ({error})"
        raise ParseError(path, "", found, ARRAYS, "Write it with numpy.savez") from error
