"""Read what trtexec wrote as numbers: logs, timing traces, layer profiles and layer information.

It reads files of trtexec 8 to 11. Every function takes a path or bytes, returns frozen records, and raises only
`ParseError` when a file is not what it should be.
"""

from enginebench.core.features import Feature, Verb
from enginebench.core.hooks import FileReader, FolderMatch, FolderReport, ToolDifference, TrtexecChoice

FEATURE = Feature(
    verbs=(Verb("parse", "TensorRT files", "Read the logs, times, profiles and layers of trtexec 8 to 11.", "verb"),),
    functions={
        "parse_layers": "verb:parse_layers",
        "parse_log": "verb:parse_log",
        "parse_profile": "verb:parse_profile",
        "parse_times": "verb:parse_times",
    },
    engines={"trtexec": "entries:TRTEXEC"},
    hooks={
        TrtexecChoice: "executable:choose_trtexec",
        ToolDifference: "difference:explain_difference",
        FolderMatch: "folder:is_trtexec_folder",
        FileReader: "reporting:read_any",
        FolderReport: "reporting:report_any",
    },
    documents={
        "enginebench.report-trtexec/1": "report:TrtexecReport",
        "enginebench.parse-log/1": "records:LogDocument",
        "enginebench.parse-times/1": "records:TimesDocument",
    },
    rank=2,  # takes any folder that no other feature knows
)
