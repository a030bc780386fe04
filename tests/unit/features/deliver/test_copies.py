"""What a bundle holds of the sources: the measured engine's own files, and what these import."""

from __future__ import annotations

from enginebench.features.deliver.contents import CPU, GPU, JUDGING
from enginebench.features.deliver.writing import list_sources
from rooms import SOURCE, find_imports


def test_measured_files_import_nothing_that_is_not_copied() -> None:
    copied = list_sources(*{f"engines/{contents.engine}.py" for contents in (*CPU.values(), *GPU.values())}, JUDGING)
    found = {i.imported for i in find_imports(SOURCE) if i.file.relative_to(SOURCE).as_posix() in copied}
    modules = {path.removesuffix(".py").replace("/", ".") for path in copied}
    assert found <= modules
    core = {"core.engine_api", "core.sums", "core.trees", "core.judging"}
    assert {module for module in modules if not module.startswith("engines.")} == core
