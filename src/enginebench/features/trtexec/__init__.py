"""What trtexec left behind, as numbers: logs, timing traces, layer profiles and layer information.

Reads what trtexec 8 to 11 writes. Every function takes a path or bytes, returns frozen records, and raises
`ParseError` and nothing else when a file is not what it should be.
"""
