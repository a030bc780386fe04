"""The verbs, one file each: the record of its options, the function, and the command made of both."""
