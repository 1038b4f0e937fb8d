"""A worked pipeline: bronze, silver and gold tables, filled by Spark, true in SQL."""
