"""The PySpark data pipeline over SQL-backed tables."""
