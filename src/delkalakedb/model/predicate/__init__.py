"""Predicates: parsed from SQL or tuples, and matched against files."""
