"""Find trtexec, its version, and its options: for 8.6 to 11.1 by table, else by its help."""

import os
import re
import shutil
from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

import msgspec
from msgspec import Struct

from enginebench.core.errors import BackendUnavailable, MissingDependency, UsageError, explaining
from enginebench.core.store import JsonObject, explain_access
from enginebench.features.trtexec.lines import read_banner
from enginebench.runs.child.programs import Unfinished, run_group

Version: TypeAlias = tuple[int, int, int]

OLDEST: Version = (8, 6, 0)
NEWEST: Version = (11, 1, 0)  # the newest whose options were read; later ones are judged by their help text

# Source: the option names that the parser looks up in samples/common/sampleOptions.cpp of NVIDIA/TensorRT at tags
# v8.6.1, v9.3.0, v10.0.0, v10.12.0, v10.16, v11.0 and v11.1, each tried on builds of 8.6.1, 10.0.1, 10.16, 11.0, 11.1.
_TABLE: JsonObject = msgspec.json.decode((Path(__file__).parent / "data" / "flags.json").read_bytes())
# Further options that the help of 8.6.1, 10.0.1, 10.16, 11.0 or 11.1 lists; none is ever composed here.
OTHERS: frozenset[str] = frozenset(_TABLE["others"])
# The replacement of an option that is gone, which also does its work in versions before it.
INSTEAD: dict[str, str] = _TABLE["instead"]
# Options that may stand on a command line more than once; any other's trial is an unknown option to trtexec.
REPEATABLE: frozenset[str] = frozenset(_TABLE["repeatable"])


def _read_span(text: str) -> tuple[Version, Version | None]:
    first, *gone = (tuple(map(int, f"{part}.0".split("."))) for part in text.split(" to "))
    return first, gone[0] if gone else None  # type: ignore[return-value]  # of three numbers each


# Option -> (first version that knows it, first version that does not know it any more).
FLAGS = {flag: _read_span(span) for span, flags in _TABLE["known"].items() for flag in flags}


def is_known(flag: str) -> bool:
    """Whether any version whose options were read has an option, named without hyphens."""
    return flag in FLAGS or flag in OTHERS


class Trtexec(Struct, frozen=True, kw_only=True):
    """One trtexec: its version, and where there is an executable, the options that its help lists."""

    version: Version
    path: str | None = None
    listed: frozenset[str] = frozenset()

    @property
    def version_text(self) -> str:
        return ".".join(map(str, self.version))

    @property
    def typed_by_graph(self) -> bool:
        return not self.accepts("fp16")

    def accepts(self, flag: str) -> bool:
        """Whether this trtexec has an option, named without hyphens.

        If the help lists it, it has it. If not, that proves nothing for deprecated names, so the table decides for the
        versions that it covers.
        """
        if flag in self.listed:
            return True
        if self.listed and not self._covered:
            return False
        first, gone = FLAGS.get(flag, (None, None))
        return first is not None and first <= self.version and (gone is None or self.version < gone)

    @property
    def _covered(self) -> bool:
        return OLDEST <= self.version < (NEWEST[0], NEWEST[1] + 1, 0)

    def check_argument(self, flag: str, argument: str) -> None:
        """Check an option that the user wrote. Without its help, a version later than the table may have any other."""
        if flag in FLAGS:
            self.require(flag, f"argument {argument}")
        elif flag not in OTHERS | self.listed and (self.listed or self._covered):
            hint = "".join(
                f"; did you mean --{near}?" for near in get_close_matches(flag, {*FLAGS, *OTHERS, *self.listed}, 1)
            )
            raise UsageError(f"argument {argument}: trtexec {self.version_text} does not know --{flag}{hint}")

    def require(self, flag: str, wanted: str) -> None:
        if not self.accepts(flag):
            first, gone = FLAGS.get(flag, (OLDEST, None))
            since = f"; it came with TensorRT {first[0]}.{first[1]}" if self.version < first else ""
            # The replacement of an option that has gone does not help in a version that does not have it yet.
            instead = f". Instead: {INSTEAD[flag]}" if flag in INSTEAD and not (since and gone) else ""
            raise UsageError(f"{wanted}: trtexec {self.version_text} does not know --{flag}{since}{instead}")


def parse_version(text: str) -> Version:
    """Parse `10.16`, `11` or `8.6.1`; missing numbers are 0."""
    match = re.fullmatch(r"v?(\d{1,3})(?:\.(\d{1,3}))?(?:\.(\d{1,3}))?(?:\.\d+)?", text.strip())
    version = (int(match[1]), int(match[2] or 0), int(match[3] or 0)) if match else (0, 0, 0)
    if version < OLDEST:
        raise UsageError(f"TensorRT version {text!r}: expected 8.6 or later, for example 8.6.1, 10.16 or 11.1")
    return version


VARIABLE = "TRTEXEC"

# Debian packages and Jetson; NGC containers; tar files unpacked where people unpack them.
FOLDERS = (
    "/usr/src/tensorrt/bin",
    "/opt/tensorrt/bin",
    "/usr/local/tensorrt/bin",
    "/workspace/tensorrt/bin",
    "/opt/TensorRT*/bin",
    "/usr/local/TensorRT*/bin",
    "~/TensorRT*/bin",
)

FIX = (
    "apt-get install libnvinfer-bin (NVIDIA's package repository), unpack TensorRT's tar file, or use the container "
    "nvcr.io/nvidia/tensorrt; then set TRTEXEC=/path/to/trtexec if it is not on PATH"
)

# Help is printed at once; a driver that hangs is the only reason to wait longer.
HELP_TIMEOUT_S = 60.0

_OPTION = re.compile(r"--([A-Za-z][A-Za-z0-9_]*)")


def find_trtexec(explicit: str | None = None, environment: Mapping[str, str] | None = None) -> Path | None:
    """Return the executable: the one named, else $TRTEXEC, else on PATH, else in the usual folders; None if there is
    none."""
    environment = os.environ if environment is None else environment
    for name, text in (("--trtexec", explicit), (f"${VARIABLE}", environment.get(VARIABLE))):
        if text:
            return _require_executable(name, text)
    if on_path := shutil.which("trtexec", path=environment.get("PATH")):
        return Path(on_path)
    for folder in map(Path, map(os.path.expanduser, FOLDERS)):
        for program in sorted(
            Path(folder.anchor).glob(str(folder.relative_to(folder.anchor) / "trtexec")), reverse=True
        ):
            if program.is_file() and os.access(program, os.X_OK):
                return program
    return None


def choose_trtexec(path: str) -> None:
    """Make this executable the one that this process and its children find."""
    os.environ[VARIABLE] = str(_require_executable("--trtexec", path))


def require_trtexec(explicit: str | None = None) -> Path:
    path = find_trtexec(explicit)
    if path is None:
        raise MissingDependency("trtexec", FIX)
    return path


def read_trtexec(path: Path) -> Trtexec:
    """Return the executable's version and options from its help, read again when the file changes. Needs no GPU."""
    with explain_access(f"{path} cannot be run", kind=BackendUnavailable):
        changed_ns = path.stat().st_mtime_ns
    return _run_help(path, changed_ns)


@lru_cache(maxsize=8)
def _run_help(path: Path, changed_ns: int) -> Trtexec:
    with explaining(BackendUnavailable, f"{path} --help does not run", OSError, Unfinished):
        done = run_group([str(path), "--help"], HELP_TIMEOUT_S)
    banner = next(filter(None, map(read_banner, done.stdout.splitlines())), None)
    if banner is None or banner.version is None:
        words = (done.stderr.strip() or done.stdout.strip())[:300]
        raise BackendUnavailable(
            f"{path} --help (exit code {done.returncode}) prints no banner of TensorRT 8 or later; it prints {words!r}"
        )
    major, minor, patch = map(int, banner.version.split("."))
    listed = frozenset(_OPTION.findall(done.stdout))
    return Trtexec(version=(major, minor, patch), path=str(path), listed=listed)


def _require_executable(name: str, text: str) -> Path:
    path = Path(text).expanduser()
    if not path.is_file() or not os.access(path, os.X_OK):
        raise UsageError(f"{name} names {text}, which is not an executable file; expected the path of trtexec itself")
    return path.absolute()
