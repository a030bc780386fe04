"""Virtual environments, each with the packages that were asked for and nothing else."""

import os
import subprocess
import sys
import sysconfig
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

FAST = ("--warmup", "2", "--iters", "10", "--processes", "2", "--time-limit", "1")
NEEDED = ("numpy", "msgspec", "psutil")  # by every child


def make_environment(folder: Path, *packages: str) -> Path:
    """A virtual environment with these packages of this one."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = next(folder.glob("lib/python*/site-packages"))
    for package in packages:
        for path in Path(sysconfig.get_path("purelib")).glob(f"{package}*"):
            (site / path.name).symlink_to(path)
    return folder


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """An environment in which a child can live, and no engine but `fake`."""
    return make_environment(tmp_path / "other environment", *NEEDED)


class Environments:
    """Environments of one session of tests: one for each set of requirements."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[tuple[str, ...], Path] = {}

    def make(self, *requirements: str, no_dependencies: bool = False) -> Path:
        """The interpreter of an environment with these requirements, from the index that pip is set to."""
        if requirements not in self._made:
            install = ("install", "--quiet", "--no-compile", *(["--no-deps"] if no_dependencies else []))
            self._made[requirements] = self._make_empty()
            self.pip(self._made[requirements], *install, *requirements)
        return self._made[requirements]

    def link(self, *requirements: str) -> Path:
        """As `make` would install them, were this environment the index: to fetch PyTorch takes minutes."""
        if requirements not in self._made:
            self._made[requirements] = self._make_empty()
            (site,) = self._made[requirements].parent.parent.glob("lib/python*/site-packages")
            waiting = [Requirement(line) for line in requirements]
            while waiting:
                wanted = waiting.pop()
                found = distribution(wanted.name)
                assert wanted.specifier.contains(found.version, prereleases=True), (wanted, found.version)
                for name in {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}:
                    if not (site / name).exists():
                        (site / name).symlink_to(Path(sysconfig.get_path("purelib")) / name)
                        waiting += filter(applies, map(Requirement, found.requires or ()))
        return self._made[requirements]

    def _make_empty(self) -> Path:
        return make_environment(self._folder / str(len(self._made))) / "bin" / "python"

    @classmethod
    def pip(cls, python: Path, *arguments: str) -> str:
        """What pip printed that works on an environment, which need not have a pip itself."""
        return cls.run(Path(sys.executable), "-m", "pip", "--python", str(python), *arguments)

    @staticmethod
    def run(python: Path, *arguments: str, stdin: str = "") -> str:
        """What a process of an interpreter printed; it ends with 0."""
        clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        done = subprocess.run(
            [str(python), *arguments], input=stdin, env=clean, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def applies(requirement: Requirement) -> bool:
    """Whether a package needs it here, without extras."""
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})
