"""Where trtexec is, and what it says about itself: version from its banner, options from its help."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from enginebench.core.errors import BackendUnavailable, MissingDependency, UsageError
from enginebench.features.trtexec.flags import Trtexec
from enginebench.features.trtexec.lines import read_banner

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
    """The executable: the one named, else $TRTEXEC, else PATH, else the usual folders; None if there is none."""
    environment = os.environ if environment is None else environment
    for name, text in (("--trtexec", explicit), (f"${VARIABLE}", environment.get(VARIABLE))):
        if text:
            return _require_executable(name, text)
    on_path = shutil.which("trtexec", path=environment.get("PATH"))
    return Path(on_path) if on_path else next(_search_folders(), None)


def choose_trtexec(path: str) -> None:
    """Makes this executable the one that this process and its children find."""
    os.environ[VARIABLE] = str(_require_executable("--trtexec", path))


def require_trtexec(explicit: str | None = None) -> Path:
    """Like `find_trtexec`, but it must be there."""
    path = find_trtexec(explicit)
    if path is None:
        raise MissingDependency("trtexec", FIX)
    return path


def read_trtexec(path: Path) -> Trtexec:
    """What the executable says about itself; asked once as long as the file stays the same. Needs no GPU."""
    try:
        changed_ns = path.stat().st_mtime_ns
    except OSError as error:
        raise BackendUnavailable(f"{path} cannot be run: {error.strerror}") from error
    return _ask_trtexec(path, changed_ns)


@lru_cache(maxsize=8)
def _ask_trtexec(path: Path, changed_ns: int) -> Trtexec:
    try:
        done = subprocess.run(
            [path, "--help"], capture_output=True, timeout=HELP_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BackendUnavailable(f"{path} --help does not run: {error}") from error
    text = done.stdout.decode("utf-8", "replace")
    banner = next(filter(None, map(read_banner, text.splitlines())), None)
    if banner is None or banner.version is None:
        words = (done.stderr.decode("utf-8", "replace").strip() or text.strip())[:300]
        raise BackendUnavailable(
            f"{path} --help (exit code {done.returncode}) prints no banner of TensorRT 8 or later; it prints {words!r}"
        )
    major, minor, patch = map(int, banner.version.split("."))
    listed = frozenset(_OPTION.findall(text))
    return Trtexec(version=(major, minor, patch), build=banner.build, path=str(path), listed=listed)


def _require_executable(name: str, text: str) -> Path:
    path = Path(text).expanduser()
    if not path.is_file() or not os.access(path, os.X_OK):
        raise UsageError(f"{name} names {text}, which is not an executable file; expected the path of trtexec itself")
    return path.absolute()


def _search_folders() -> Iterator[Path]:
    for folder in FOLDERS:
        pattern = Path(folder).expanduser()
        for found in sorted(Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor))), reverse=True):
            path = found / "trtexec"
            if path.is_file() and os.access(path, os.X_OK):
                yield path
