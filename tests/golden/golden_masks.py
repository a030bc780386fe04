"""What of an output is compared: all that is stored or asked for, and of what was measured here only its form.

`$` commands are compared word for word, but for folders, digests and the lines of a traceback.
`~` commands measure: the rules below are about names and forms of fields, never about single commands.
"""

import json
import math
import re
from typing import Any

WIDTH = 110
NOISE = 1e-12  # what is left of a difference of equal numbers
ESTIMATE = {"value", "low", "high", "level", "n", "method", "supported"}

# Fields of a document that say what this machine is, and what a disturbance can change.
MACHINE = re.compile(
    "machines?|versions|engine_version|environment|made_by|proposed_by|available|devices|fix|default_threads|others"
)
DISTURBED = re.compile(
    "validity|caveats|verdict|reasons|notes|stop_rules|fastest|recommended|tied_with|repetitions_needed|pareto|"
    "failures|gate_failed|speedup_reason|built_beside|offered|completed|late|best|energy_mj|energy_interval_mj|"
    "peak_memory_bytes|peak_device_memory_bytes|disturbed|ratio|strict_ratio|ratio_validity|ratio_reason|speedup|ratio_to_next|"
    "ratio_to_fastest|verdict_to_fastest|verdict_to_next|p50_unmarked_ms"
)
TIMED = re.compile(r"(.*_)?(seconds|ns|s|ms|us|mhz|bytes|samples|generation|rounds?)")
# Numbers with a fraction that were asked for, or that follow from weights and inputs alone.
ASKED = re.compile(
    "margin|level|percentiles?|qps|limit_ms|max_metric_drop|time_limit_s|max_wait_ms|timeout_s|max_abs_diff|cosine|"
    "centred_cosine|top1_agreement|top1_accuracy|effective_precision"
)

NUMBER = r"[±<>~]?[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?"
MEASURED = re.compile(rf"(?<![\w=:@.\-/]){NUMBER}(?:[%x?]|(?= )|(?=/)|(?=[,.;:)]|$))", re.MULTILINE)
FRACTION = re.compile(
    rf"(?<![\w=:@\-/]){NUMBER}(?=%|x\b| ?(?:s|ms|us|ns|min|MB|MiB|kB|GB/s|Hz)\b)|(?<![\w=:@.\-/])\d+\.\d+(?![\w.])"
)
MARKS = re.compile(r"\b(suspect|invalid|valid|times|about)\b|[◆()█▉▊▋▌▍▎▏▐≤]|\\?~")


def mask(text: str, places: dict[str, str], *, measured: bool) -> str:
    """The part of an output that is compared."""
    for path, name in places.items():
        text = text.replace(path, name)
    text = re.sub(r"^ *\d+ s (?=\S)", "", text, flags=re.MULTILINE)  # seconds since the start, before a step
    text = re.sub(r"\bpid \d+, .*?, since \d\d:\d\d:\d\d", "pid #, COMMAND, since #", text)  # who holds a device
    text = re.sub(r"\b[0-9a-f]{40,64}\b", "DIGEST", text)
    text = re.sub(r"(sha256|plans/) ?[0-9a-f]{12,16}\b", r"\1 DIGEST", text)
    moment = r"\d{8}T\d{6}Z(-\d+)?|\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|\+00:00)?"
    text = re.sub(moment if measured else r"\d{8}T\d{6}Z", "TIME", text)
    text = re.sub(r"'(\S*HERE/\S*)'", r"\1", text)  # as a shell needs it where the folder's name has a space
    text = re.sub(r"HERE/tmp/[^/\s]+", "HERE/tmp/ANY", text)
    text = re.sub(r"-[0-9a-f]{8}-local\b", "-PATH-local", text)  # the group of a sweep: a digest of the model's path
    text = re.sub(r"Traceback \(most.*?\n(?=\S)", "Traceback\n", text, flags=re.DOTALL)
    if (document := read_json(text)) is not None:
        return "\n".join(spell(strip(document) if measured else document)) + "\n"
    return re.sub(r"(?<![\w.])-?\d+\.\d{7,}(e-?\d+)?", lambda match: flatten(float(match[0])), text)


def mask_progress(text: str) -> str:
    """Lines that tell how a measurement goes: sorted, since rows may be built side by side, and without times."""
    text = re.sub(r"( · [\d.]+ ms so far.*| · at most [\d.]+ s left)$", "", text, flags=re.MULTILINE)
    text = re.sub(r"Verdict: .*", "Verdict: MEASURED", re.sub(r"ceilings/\S+", "ceilings/MACHINE", text))
    lines = FRACTION.sub("#", re.sub(r"^\[\d+/(\d+)\]", r"[#/\1]", text, flags=re.MULTILINE)).splitlines()
    return "".join(f"{line}\n" for line in sorted(lines) if line and "side by side" not in line)


def mask_tables(text: str) -> str:
    """Of a measured text its tables: titles, and the words of each row. Bars and sentences depend on figures."""
    kept: list[str] = []
    lines = text.splitlines()
    for at, line in enumerate(lines):
        if re.fullmatch(r"\s*─+\s*", line):
            kept += [words(lines[at - 1]), "───"]
            for row in lines[at + 1 :]:
                if not row.strip() or re.match(r"\? |all: | *\d+ [a-z]|fastest", row):
                    break
                kept.append(words(row))
        elif line.startswith("|") and "---" not in line:
            kept.append(words(line.replace("|", " ")))
    return "".join(f"{line}\n" for line in kept if line)


def words(line: str) -> str:
    """A line of a table without numbers, units and marks."""
    # Behind a time that is too long for its column's unit; not in a heading such as `p50 ms`.
    line = re.sub(r"(?<![\w.])(\d[\d.,]*) (ms|s)(?=\?| |$)", r"\1", line)
    line = MARKS.sub("", MEASURED.sub("#", line.replace("..", " ")))
    line = re.sub(r"(?<![\w/])(ns|us|ms|s)(?![\w])", "UNIT", line)
    line = re.sub(r"#[#\-.,()/\s]*(?=\s|$)", "# ", f"{line} ")
    return re.sub(r"(# )+", "# ", " ".join(line.split()) + " ").strip()


def read_json(text: str) -> Any:
    """The document, or None for any other text."""
    if not text.startswith(("{", "[")):
        return None
    try:
        return json.loads(text)
    except ValueError:
        return None


def strip(node: Any, name: str = "") -> Any:
    """A document without what was measured."""
    if MACHINE.fullmatch(name):
        return "MACHINE"
    if DISTURBED.fullmatch(name):
        return "MEASURED"
    asked = ASKED.fullmatch(name) is not None
    if isinstance(node, dict):
        if node.keys() >= ESTIMATE:
            return "ESTIMATE" if node.keys() == ESTIMATE else sorted(node)
        return {key: strip(value, name if asked else key) for key, value in node.items()}
    if isinstance(node, list):
        return "TIMES" if TIMED.fullmatch(name) else [strip(item, name if asked else "") for item in node]
    if isinstance(node, float) and asked:
        return round(node, 4)  # what is left of a difference of alike answers is a processor's own
    if isinstance(node, (int, float)) and not isinstance(node, bool) and not asked:
        return "#" if isinstance(node, float) or TIMED.fullmatch(name) else node
    return FRACTION.sub("#", node) if isinstance(node, str) else node


def spell(node: Any, lead: str = "", tail: str = "") -> list[str]:
    """JSON as lines: what fits one line is on one."""
    flat = lead + flatten(node) + tail
    if len(flat) <= WIDTH or not isinstance(node, (dict, list)) or not node:
        return [flat]
    if isinstance(node, list) and len(node) > 24 and all(isinstance(item, (int, float)) for item in node):
        return [f"{lead}[{len(node)} numbers, sum {sum(node):.6g}]{tail}"]
    indent = " " * (len(lead) - len(lead.lstrip())) + " "
    pairs = node.items() if isinstance(node, dict) else [(None, item) for item in node]
    lines = [lead + ("{" if isinstance(node, dict) else "[")]
    for at, (key, value) in enumerate(pairs):
        label = indent if key is None else f"{indent}{json.dumps(key, ensure_ascii=False)}: "
        lines += spell(value, label, "," if at < len(node) - 1 else "")
    return [*lines, indent[1:] + ("}" if isinstance(node, dict) else "]") + tail]


def flatten(node: Any) -> str:
    """JSON in one line; fractions to six digits, since the last bits are a processor's own."""
    if isinstance(node, float) and math.isfinite(node):
        return f"{node:.6g}" if abs(node) > NOISE else "0"
    if isinstance(node, dict):
        return "{" + ", ".join(f"{json.dumps(key, ensure_ascii=False)}: {flatten(v)}" for key, v in node.items()) + "}"
    if isinstance(node, list):
        return "[" + ", ".join(map(flatten, node)) + "]"
    return json.dumps(node, ensure_ascii=False)
