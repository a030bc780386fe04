"""One call of an engine, or of the command line."""

import json
from typing import Any


def run_on(engine: Any, feeds: Any) -> dict[str, Any]:
    """The outputs of one run on these arrays."""
    engine.bind(feeds)
    engine.run()
    found: dict[str, Any] = engine.fetch()
    return found


def succeed(cli: Any, *arguments: object, **how: Any) -> Any:
    """The process of a command line that ended well."""
    return cli(*arguments, code=0, **how)


def read_document(cli: Any, *arguments: object, **how: Any) -> Any:
    """The JSON that a command line printed, which ended well."""
    return json.loads(succeed(cli, *arguments, **how).stdout)
