"""One file a verb of the command line: options in, one call, the answer printed, an exit code.

Lives here: verbs, named as they are typed. May not be here: what two of them share (`cli`), or any logic.
"""
