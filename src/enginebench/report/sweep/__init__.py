"""A sweep as people read it: the document of all cells, the table in a terminal, and the matrix page."""
