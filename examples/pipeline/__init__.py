"""An example pipeline: Spark fills bronze, silver and gold tables of a catalog."""
