"""One file per verb, named after it: the library function behind each command.

Lives here: the steps of a verb, from its request to its document. May not be here: options and printing (`cli`),
work that belongs to a child process (`child`), or what several verbs start from (`targets`).
"""
