"""Calls that have to be refused while another run holds the device: before anything is waited for."""

import threading
from collections.abc import Callable

from enginebench.core.errors import EngineBenchError
from enginebench.runs.lock import lock_device


def check_refused_at_once(call: Callable[[], object], message: str) -> None:
    """Check that a call ends in an error of ours with this message although the CPU is held."""
    refused: list[BaseException] = []

    def ask() -> None:
        try:
            call()
        except BaseException as error:  # handed to the test
            refused.append(error)

    with lock_device("cpu"):
        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(timeout=120)
        assert not asking.is_alive(), "it waits for the device"
    (error,) = refused
    assert isinstance(error, EngineBenchError) and message in str(error), repr(error)
