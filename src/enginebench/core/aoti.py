"""AOTInductor's packages (`.pt2`), read as data: nothing in them is loaded. Bundles hold a copy of this file.

It imports Python's own library alone. A package is a library of native code; PyTorch's loader unpacks every member to
where its name leads, and asks nothing of the machine but the platform. Source: PyTorch 2.13, model_package_loader.cpp.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import sys
import zipfile
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .engine_api import ArtifactError
from .judging import is_plain, read_flags

ROOT = "model"  # the folder of all members, which PyTorch names after the file
FOLDER = "data/aotinductor/"
RECORD = "data/extra/enginebench.json"
SCHEMA = "enginebench.aoti/1"
MOST_MEMBERS, MOST_RECORD_BYTES = 10_000, 1 << 20
# Instruction sets that a compiler may use when it compiles for this processor, as Linux spells them.
_INSTRUCTIONS = re.compile(r"s?sse\d|avx|amx_|fma|f16c|bmi|abm|movbe|gfni|vaes|adx|asimd|sve|i8mm|bf16")


def is_package(path: Path) -> bool:
    """Return whether a file is a package of AOTInductor, by the names in it; one of `torch.export` is not."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(FOLDER in name for name in archive.namelist())
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return False


def read_package_record(path: Path) -> dict[str, Any]:
    """Read the record in a package; ArtifactError if it is damaged or a member is unsafe to unpack."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            if fault := _find_fault(members, path.stat().st_size):
                raise ArtifactError(f"{path} is not opened: {fault}. Build it again with enginebench build")
            own = [member for member in members if member.filename.partition("/")[2] == RECORD]
            record = json.loads(archive.read(own[0])) if own and own[0].file_size <= MOST_RECORD_BYTES else None
    except (OSError, ValueError, RecursionError, NotImplementedError, zipfile.BadZipFile) as error:
        raise ArtifactError(f"{path} is damaged ({error}). Build it again with enginebench build") from error
    if not isinstance(record, dict) or record.get("schema") != SCHEMA or not isinstance(record.get("here"), dict):
        raise ArtifactError(
            f"{path} does not say for which machine and version of PyTorch it was compiled. Expected a package of "
            "pytorch-aoti that enginebench build wrote"
        )
    return record


def _find_fault(members: list[zipfile.ZipInfo], size: int) -> str | None:
    names = [member.filename for member in members]
    odd = next((n for n in names if not all(is_plain(part.removeprefix(".")) for part in n.split("/"))), None)
    if odd is not None:
        return f"a member is called {odd!r}, which is not a plain path inside it"
    if len(names) > MOST_MEMBERS or len(set(names)) < len(names) or len({n.partition("/")[0] for n in names}) > 1:
        return f"its {len(names)} members are too many, of several folders, or have the same names"
    if any(m.compress_type != zipfile.ZIP_STORED for m in members) or sum(m.file_size for m in members) > size:
        return "its members are compressed, or overlap, and PyTorch writes none that do"
    return None


def write_record(written: Path, path: Path, record: Mapping[str, Any]) -> None:
    """Write the package that PyTorch has `written` to `path`, with a record, and its sources empty: they name folders.

    The loader of PyTorch 2.11 looks for what goes with the library by the name of its source.
    """
    with zipfile.ZipFile(written) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as target:
        for member in source.infolist():
            name = zipfile.ZipInfo(f"{ROOT}/{member.filename.partition('/')[2]}")
            with source.open(member) as read, target.open(name, "w", force_zip64=True) as to:
                if not name.filename.endswith(".cpp"):
                    shutil.copyfileobj(read, to)
        target.writestr(zipfile.ZipInfo(f"{ROOT}/{RECORD}"), json.dumps({"schema": SCHEMA, **record}))


def describe_here(gpu: str | None) -> dict[str, Any]:
    """Return what a package compiled on this machine is compiled for; `gpu`: name of the GPU, None for the CPU."""
    return {
        "torch": version("torch"),
        "platform": f"{sys.platform} {platform.machine()}",
        "gpu": gpu,
        "instructions": sorted(filter(_INSTRUCTIONS.match, read_flags())),
    }


def find_differences(record: Mapping[str, Any], gpu: str | None) -> Iterator[str]:
    """Yield a sentence for each difference between this machine and the one that a package was compiled for."""
    wanted, here = record["here"], describe_here(gpu)
    for name in ("torch", "platform", "gpu"):
        if wanted.get(name) != here[name]:
            yield f"it was compiled for {name} {wanted.get(name) or 'none'}; here is {here[name] or 'none'}"
    instructions = wanted.get("instructions")
    lacking = ["all"]
    if isinstance(instructions, list):
        lacking = sorted({str(flag) for flag in instructions} - set(read_flags()))
    if lacking:
        yield f"it was compiled with the instructions {', '.join(lacking)}, which this CPU lacks"
