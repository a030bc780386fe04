"""`pick LIST FIELD...` and `pick keys . NAME...`: what a session compares of a JSON document.

The first prints these fields of each entry of a list. The second prints the names of the fields of the document (`.`),
of its parts, or of the first entry of its lists.
"""

import json
import sys
from typing import Any


def list_fields(document: dict[str, Any], name: str) -> list[str]:
    part = document if name == "." else document[name]
    return sorted(part[0] if isinstance(part, list) else part)


def main(first: str, *rest: str) -> None:
    document = json.load(sys.stdin)
    if first == "keys":
        found: Any = {name: list_fields(document, name) for name in rest}
    else:
        found = [{field: row[field] for field in rest} for row in document[first]]
    print(json.dumps(found, ensure_ascii=False))


if __name__ == "__main__":
    main(*sys.argv[1:])
