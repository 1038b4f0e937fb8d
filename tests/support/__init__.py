"""What the tests share: servers, processes, tables and how they compare."""
