"""Scripts of this repository, as modules."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

from processes import ROOT


def load_script(place: str) -> ModuleType:
    """The module of `benchmarks/tune.py`, which is loaded once; it finds what stands beside it, as when it is run."""
    name = place.removesuffix(".py").replace("/", "_")
    if name not in sys.modules:
        beside = str((ROOT / place).parent)
        if beside not in sys.path:
            sys.path.append(beside)
        spec = spec_from_file_location(name, ROOT / place)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = module_from_spec(spec)  # records look their module up
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
