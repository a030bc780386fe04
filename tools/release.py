"""Make what a release publishes, and check it as those who install it would: `make release`.

    python tools/release.py [--check] [--rehearse]

Version, changelog and, where $TAG is set, the tag must agree; then `dist/` gets the wheel and the sources, and
`build/notes.md` the notes. Both files are checked by twine; the wheel is installed into an empty environment, where
`doctor` and a quick run must work; tests of the sources run in what was unpacked.

--check: nothing but the agreement.
--rehearse: before the section of the version is written; the notes are what is unreleased.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
# Tests that read every file of the sources, the pages, and the data of the tests: what the archive lacks fails them.
TESTS = ("tests/unit/test_rooms.py", "tests/unit/test_language.py", "tests/unit/core", "tests/unit/report")


def fail(text: str) -> None:
    raise SystemExit(f"error: {text}")


def read_version() -> str:
    text = (ROOT / "src" / "enginebench" / "__init__.py").read_text("utf-8")
    found = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    assert found, "src/enginebench/__init__.py defines __version__"
    return found[1]


def read_sections(changelog: str) -> dict[str, str]:
    """Return {heading: text} of a changelog, the newest first."""
    _, *parts = re.split(r"^## (.+)\n", changelog, flags=re.MULTILINE)
    return {heading.strip(): text.strip() for heading, text in zip(parts[::2], parts[1::2], strict=True)}


def find_notes(version: str, sections: dict[str, str], *, tag: str | None = None, rehearse: bool = False) -> str:
    """Return the notes of a release.

    Raises:
        SystemExit: tag, version and changelog do not agree.
    """
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version):
        fail(f"__version__ is {version!r}; expected X.Y.Z, or X.Y.Z with a, b or rc and a number")
    if tag is not None and tag != f"v{version}":
        fail(f"the tag is {tag!r} and __version__ is {version!r}; expected the tag v{version}")
    headings = [heading for heading in sections if heading != "Unreleased"]
    if rehearse and not any(heading.startswith(f"{version} ") for heading in headings):
        return sections["Unreleased"]
    if not headings or not re.fullmatch(rf"{re.escape(version)} - \d{{4}}-\d\d-\d\d", headings[0]):
        newest = f"its newest is '## {headings[0]}'" if headings else "it has none yet"
        fail(f"CHANGELOG.md needs a section '## {version} - YYYY-MM-DD' below '## Unreleased'; {newest}")
    if sections.get("Unreleased"):
        fail(f"CHANGELOG.md has entries below '## Unreleased'; move them below '## {headings[0]}'")
    if not sections[headings[0]]:
        fail(f"CHANGELOG.md says nothing below '## {headings[0]}'")
    return sections[headings[0]]


def run(*command: object, cwd: Path = ROOT) -> None:
    """Run a command, which must end well."""
    print("$", *command, flush=True)
    code = subprocess.run([str(part) for part in command], cwd=cwd, check=False).returncode
    if code:
        fail(f"this ended with exit code {code}: {' '.join(map(str, command))}")


def make_environment(place: Path, *packages: str) -> Path:
    """Make a virtual environment with these packages at the pinned versions; return its programs' folder."""
    venv.create(place, with_pip=True, clear=True)
    run(place / "bin" / "pip", "install", "--quiet", "--constraint", CONSTRAINTS, *packages)
    return place / "bin"


def build(scratch: Path) -> tuple[Path, Path]:
    """Build (the wheel, the sources) into `dist/`, and check what an index shows of them."""
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    tools = make_environment(scratch / "tools", "build", "twine")
    run(tools / "python", "-m", "build", "--outdir", dist, ROOT)
    ((wheel,), (sources,)) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    run(tools / "twine", "check", "--strict", wheel, sources)
    return wheel, sources


def try_wheel(wheel: Path, scratch: Path) -> None:
    """Install the wheel outside of the checkout: first alone, then with an engine that it measures."""
    place = scratch / "elsewhere"
    place.mkdir()
    programs = make_environment(scratch / "wheel", str(wheel))
    run(programs / "enginebench", "--version", cwd=place)
    run(programs / "enginebench", "doctor", cwd=place)
    run(programs / "pip", "install", "--quiet", "--constraint", CONSTRAINTS, f"{wheel}[ort]")
    run(programs / "enginebench", "run", "digits-mlp", "--engines", "ort", "--quick", "--out", "run", cwd=place)


def try_sources(sources: Path, scratch: Path) -> None:
    """Unpack the sources, and run tests of theirs with the packages of this environment."""
    with tarfile.open(sources) as archive:
        archive.extractall(scratch, filter="data")
    place = scratch / sources.name.removesuffix(".tar.gz")
    run(sys.executable, "-m", "pytest", "-q", *TESTS, cwd=place)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only whether version, changelog and tag agree")
    parser.add_argument("--rehearse", action="store_true", help="before the section of the version is written")
    options = parser.parse_args()
    version, tag = read_version(), os.environ.get("TAG") or None
    sections = read_sections((ROOT / "CHANGELOG.md").read_text("utf-8"))
    notes = find_notes(version, sections, tag=tag, rehearse=options.rehearse)
    if options.check:
        print(f"{version}: version, changelog{' and tag' if tag else ''} agree")
        return
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        wheel, sources = build(scratch)
        try_wheel(wheel, scratch)
        try_sources(sources, scratch)
    place = ROOT / "build" / "notes.md"
    place.parent.mkdir(exist_ok=True)
    place.write_text(f"{notes}\n", encoding="utf-8")
    print(
        f"ready to publish: {wheel.relative_to(ROOT)}, {sources.relative_to(ROOT)}; notes in {place.relative_to(ROOT)}"
    )


if __name__ == "__main__":
    main()
