"""What the Python bindings of a TensorRT version have of the names that engine `tensorrt` uses; the answer is JSON.

    python tools/tensorrt_names.py FOLDER [tensorrt_bindings]

FOLDER holds an unpacked wheel of the bindings, for example what `pip download --no-deps tensorrt-bindings==8.6.1` gets,
on the Python that it was made for. Bindings import without NVIDIA's libraries if something of their names defines the
functions that they link: empty functions are compiled for that, and none is called. Needs gcc and readelf.

`names` has the form of `tests/fakes/modules/tensorrt/names.json`; `missing` are the names that the engine's files hold,
that some version has, and that this one lacks.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
NAMES = ROOT / "tests" / "fakes" / "modules" / "tensorrt" / "names.json"
STUBBED = ("libnvinfer", "libnvonnxparser", "libnvparsers")

# Runs in a process of its own: a library that is a stub stays loaded.
LIST = """
import importlib, json, sys
trt, wanted = importlib.import_module(sys.argv[1]), json.loads(sys.argv[2])
members = lambda thing: sorted(n for n in vars(thing) if not n.startswith('_'))
print(json.dumps({
    'version': trt.__version__,
    'classes': {n: members(getattr(trt, n)) for n in wanted['classes'] if hasattr(trt, n)},
    'enums': {n: sorted(getattr(trt, n).__members__) for n in wanted['enums'] if hasattr(trt, n)},
    'functions': [n for n in wanted['functions'] if hasattr(trt, n)],
}))
"""


def list_names(folder: Path, module: str) -> dict[str, object]:
    """The inventory of the bindings in `folder`, of the classes, enums and functions that the project's own knows."""
    known = json.loads(NAMES.read_text(encoding="utf-8"))
    wanted = {
        kind: sorted({n for v in known.values() if isinstance(v, dict) for n in v[kind]})
        for kind in ("classes", "enums", "functions")
    }
    with TemporaryDirectory() as stubs:
        make_stubs(folder, Path(stubs))
        found = subprocess.run(
            [sys.executable, "-c", LIST, module, json.dumps(wanted)],
            env={**os.environ, "PYTHONPATH": str(folder), "LD_LIBRARY_PATH": stubs},
            check=True,
            capture_output=True,
            text=True,
        )
    inventory: dict[str, object] = json.loads(found.stdout)
    return inventory


def make_stubs(folder: Path, stubs: Path) -> None:
    """Libraries with empty functions for those that the bindings link and nobody here has."""
    for binding in sorted(folder.glob("*_bindings/*.so")):
        table = subprocess.run(["readelf", "-Wsd", binding], check=True, capture_output=True, text=True).stdout
        lines = [line.split() for line in table.splitlines()]
        symbols = {w[7] for w in lines if len(w) == 8 and w[4] == "GLOBAL" and w[6] == "UND"}
        own = sorted(s for s in symbols if "@" not in s and not s.startswith(("Py", "_Py")))
        code = "".join(f"void {name}(void) {{}}\n" for name in own)
        for name in (w[-1].strip("[]") for w in lines if "(NEEDED)" in w):
            if name.startswith(STUBBED) and not list(folder.glob(f"*/{name}")):
                command = ["gcc", "-w", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", stubs / name, "-xc", "-"]
                subprocess.run(command, input=code, text=True, check=True)


def list_used() -> Iterator[str]:
    """Attributes and words in the files of engine `tensorrt`."""
    for path in sorted((ROOT / "src" / "enginebench" / "engines" / "backends" / "tensorrt").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                yield node.attr
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
                yield node.value


def flatten(inventory: dict[str, object]) -> set[str]:
    """Every name of an inventory."""
    names = set(inventory["functions"])  # type: ignore[call-overload]
    for kind in ("classes", "enums"):
        for name, members in inventory[kind].items():  # type: ignore[attr-defined]
            names |= {name, *members}
    return names


def main() -> int:
    """Prints the answer."""
    folder, module = Path(sys.argv[1]).resolve(), (*sys.argv[2:], "tensorrt_bindings")[0]
    names = list_names(folder, module)
    known = json.loads(NAMES.read_text(encoding="utf-8"))
    everywhere = set().union(*(flatten(v) for v in known.values() if isinstance(v, dict)))
    missing = sorted(set(list_used()) & everywhere - flatten(names))
    print(json.dumps({"missing": missing, "names": names}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
