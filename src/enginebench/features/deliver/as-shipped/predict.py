"""The model on the engine that was measured: folder `measured` holds that engine's own files, byte for byte.

    from predict import load

    predict = load()
    outputs = predict({"input": array})  # every input by its name, as bundle.json lists them

`python predict.py --check` compares with the outputs that were measured, `python predict.py --bench` times it here.
"""

import facts  # first: it sets variables that NumPy and the runtime read while they are imported

# isort: split
import sys
from typing import Any

import trial
from measured.core.engine_api import PaddedEngine, SharedEngine
from measured.engines import ort as engine


class Predictor(SharedEngine):  # type: ignore[misc]  # of the bundle, whose files are copied there
    """The engine, ready. Call it with the inputs by name, or `bind` them, `run`, and `fetch` the outputs.

    Threads may share it: calls are made one after another. One predictor for each thread is faster.
    """

    def __init__(self, loaded: Any) -> None:
        super().__init__(loaded)
        self.engine = loaded  # without the lock of calls: what was timed


def load(force: bool = False) -> Predictor:
    """Load the model. `force` continues, with a message, if files, versions or machine are not as measured."""
    facts.check(force)
    if facts.BUNDLE["artifact"]["kind"] == "plan":
        facts.check_gpu(engine.name_gpu(facts.ENGINE), force)
    arguments: list[Any] = [facts.ARTIFACT, facts.ENGINE, facts.BUNDLE["options"]]
    if facts.BUNDLE["module"]:
        import module

        arguments.append(module.load_module())
    loaded = engine.open_engine(*arguments)
    return Predictor(PaddedEngine(loaded, facts.BUNDLE["padding"]) if facts.BUNDLE["padding"] else loaded)


if __name__ == "__main__":
    sys.exit(trial.main(load))
