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
from measured.engines import ort as engine


class Predictor:
    """The engine, ready. Call it with the inputs by name, or `bind` them, `run`, and `fetch` the outputs."""

    def __init__(self, loaded: Any) -> None:
        self.engine = loaded
        self.bind, self.fetch = loaded.bind, loaded.fetch

    @property
    def run(self) -> Any:
        """The call that computes the outputs from what was bound; the one that was timed."""
        return self.engine.run

    def __call__(self, feeds: trial.Arrays) -> trial.Arrays:
        """The outputs by name, for the inputs by name."""
        self.bind(feeds)
        self.engine.run()
        outputs: trial.Arrays = self.fetch()
        return outputs


def load(force: bool = False) -> Predictor:
    """The model, ready. `force` goes on where files, versions or machine are not those of the row, and says so."""
    facts.check(force)
    if facts.BUNDLE["artifact"]["kind"] == "plan":
        facts.check_gpu(engine.name_gpu(facts.ENGINE), force)
    given: list[Any] = [facts.ARTIFACT, facts.ENGINE, facts.BUNDLE["options"]]
    if facts.BUNDLE["module"]:
        import module

        given.append(module.load_module())
    return Predictor(engine.open_engine(*given))


if __name__ == "__main__":
    sys.exit(trial.main(load))
