"""Execution providers of ONNX Runtime that come as packages of their own: one loader for all of them.

Such a package names a library and a provider. The library is registered once in a process; it then lists devices, and
a session gets devices and options. Nodes that the provider does not take run silently on ONNX Runtime's own CPU
provider, unless the session forbids it.
"""

import ctypes
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import onnxruntime
from msgspec import Struct

from enginebench.core.errors import BackendUnavailable
from enginebench.core.operators import register_operators
from enginebench.core.records import Artifact
from enginebench.engines.backends.onnxruntime.ort import WatchedOrtEngine, check_interface
from enginebench.engines.ort import make_plain_options
from enginebench.engines.refusals import make_refusal

# The beginning of ONNX Runtime's message if a graph has nodes for the CPU although that is forbidden.
# Source: onnxruntime, core/session/inference_session.cc, of `session.disable_cpu_ep_fallback`.
FELL_BACK = "fallback to CPU EP has been explicitly disabled"


class Provider(Struct, frozen=True, kw_only=True):
    """A provider's package: the module to import, and libraries in it that its own library does not find by itself."""

    engine: str
    module: str
    preload: tuple[str, ...] = ()  # patterns of file names beside its library
    needs: tuple[tuple[str, str], ...] = ()  # words of a loader's error, and what they mean for the user


@cache
def register(provider: Provider) -> str:
    """The provider's name, once its library is registered in this process."""
    try:
        package = import_module(provider.module)
        name, library = str(package.get_ep_name()), Path(package.get_library_path())
        for pattern in provider.preload:
            for path in sorted(library.parent.glob(pattern)):
                ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        onnxruntime.register_execution_provider_library(name, str(library))
    except Exception as error:  # what the package raises, OSError of the loader, and ONNX Runtime's own
        causes = [f"{meaning}; " for words, meaning in provider.needs if words in str(error)]
        raise BackendUnavailable(
            f"engine {provider.engine}: {''.join(causes)}the library of {provider.module} cannot be loaded "
            f"({shorten_loader_error(error)})"
        ) from error
    return name


def find_devices(provider: Provider) -> list[Any]:
    """The devices that the provider offers, in its order."""
    name = register(provider)
    return [device for device in onnxruntime.get_ep_devices() if device.ep_name == name]


def shorten_loader_error(error: Exception) -> str:
    """Return the end of a loader's error, without the path of the library and ONNX Runtime's own words before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].rpartition(" with error: ")[2] if lines else type(error).__name__


def open_provider_session(
    artifact: Artifact,
    provider: Provider,
    device: Any,
    provider_options: dict[str, str],
    chosen: Mapping[str, str],
    settings: Any = None,
) -> Any:
    """Open a session on one device of a provider; `chosen` are the engine's own options."""
    onnxruntime.disable_telemetry_events()
    settings = settings or make_plain_options(1, chosen["opt"])  # ONNX Runtime itself computes nothing
    register_operators(settings, artifact.operator_libraries)
    if chosen["fallback"] == "refuse":
        settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    settings.add_provider_for_devices([device], provider_options)
    try:
        session = onnxruntime.InferenceSession(artifact.path, settings)
    except Exception as error:
        if FELL_BACK in str(error):
            raise BackendUnavailable(
                f"{artifact.path}: {provider.engine} does not take every node, and ONNX Runtime's CPU provider would "
                f"run the others. To measure the mixture anyway: {provider.engine}:fallback=allow"
            ) from error
        raise make_refusal(
            f"ONNX Runtime cannot load {Path(artifact.path).name} with {provider.engine}", error
        ) from error
    session.disable_fallback()
    if register(provider) not in session.get_providers():
        raise BackendUnavailable(f"asked ONNX Runtime for {provider.engine}, got {', '.join(session.get_providers())}")
    check_interface(artifact, session)
    return session


class ProviderEngine(WatchedOrtEngine):
    """A session of such a provider, fed from the host.

    What is bound is copied into the provider's memory there and then, and later values in the same buffer are not seen:
    so every `bind` binds anew.
    """

    def _hand_over(self) -> None:
        self._bind_inputs()
