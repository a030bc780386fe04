"""What trtexec left, as tables, files and a page.

Lives here: rendering of `analyze.trtexec`'s documents. May not be here: reading trtexec's files.
"""
