"""Filters over rows."""

Predicate = object
