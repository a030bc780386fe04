"""The line of the user's source that an error of PyTorch's exporter or compiler goes back to."""

import linecache
import os
import re
import sys
import sysconfig
import traceback
from pathlib import Path

from .errors import list_causes

# Never the line to report: code of the tools themselves and of Python's own library.
_TOOLS = ("torch", "enginebench", "onnxscript", "onnx_ir")
_LIBRARY = str(Path(sysconfig.get_path("stdlib")).resolve())
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def explain(error: BaseException) -> str:
    """Format an error of the user's code with its line: `KeyError: 'head' (net.py:12: return x["head"])`."""
    line = find_line(error)
    return f"{type(error).__name__}: {' '.join(str(error).split())}{f' ({line})' if line else ''}"


def find_line(error: BaseException) -> str | None:
    """`net.py:12: return x.mystery()` of the user's innermost frame, else of an installed package's; None if none is.

    The forward pass runs while it is captured, so that its frames are those of the error; an operator that fails
    later keeps the stack that it was called with.
    """
    candidates: list[tuple[bool, str, int]] = []
    for link in list_causes(error):
        raised = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(link.__traceback__)]
        # Where the operator was called that the exporter was at.
        nodes = (frame.f_locals.get("node") for frame, _ in traceback.walk_tb(link.__traceback__))
        metas = (meta for node in nodes if isinstance(meta := getattr(node, "meta", None), dict))
        texts = "\n".join([*(str(meta.get("stack_trace") or "") for meta in metas), str(link)])
        # The innermost one counts: of the error itself, of what it quotes, then of the operator that was exported.
        listed = reversed([*((path, int(line)) for path, line in _FRAME.findall(texts)), *raised])
        candidates += [(_is_installed(path), path, line) for path, line in listed if _is_users(path)]
    if not candidates:
        return None
    _, path, line = min(candidates, key=lambda candidate: candidate[0])  # the first of those that are not installed
    source, whole = linecache.getline(path, line).strip(), Path(path).resolve()
    # As an import would find it: below the working folder or a folder of `sys.path`.
    homes = (home.resolve() for home in (Path.cwd(), *map(Path, sys.path)) if str(home))
    home = next((home for home in homes if whole.is_relative_to(home)), whole.parent)
    return f"{whole.relative_to(home)}:{line}" + (f": {source}" if source else "")


def _is_users(path: str) -> bool:
    whole = str(Path(path).resolve())
    files = [file for name in _TOOLS if (file := getattr(sys.modules.get(name), "__file__", None))]
    own = tuple(f"{Path(file).resolve().parent}{os.sep}" for file in files)
    strange = path.startswith("<") or whole.startswith(own)
    return not strange and (_is_installed(whole) or not whole.startswith(_LIBRARY))


def _is_installed(path: str) -> bool:
    return "site-packages" in path or "dist-packages" in path
