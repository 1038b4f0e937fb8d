"""Statistics: sortable values, bounds of files, and the rows of their index."""
