"""Fresh virtual environments, each with the packages that were asked for and nothing else."""

import os
import subprocess
import sys
from pathlib import Path


class Environments:
    """Environments of one session of tests: one for each set of requirements."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[tuple[str, ...], Path] = {}

    def make(self, *requirements: str, no_dependencies: bool = False) -> Path:
        """The interpreter of an environment with these requirements, from the index that pip is set to."""
        if requirements not in self._made:
            place = self._folder / str(len(self._made))
            self.run(Path(sys.executable), "-m", "venv", "--without-pip", str(place))
            # Compiling every file of PyTorch takes a minute; what is imported is compiled on its first import anyway.
            install = ("install", "--quiet", "--no-compile", *(["--no-deps"] if no_dependencies else []))
            self._made[requirements] = place / "bin" / "python"
            self.pip(self._made[requirements], *install, *requirements)
        return self._made[requirements]

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
