"""Schemas: columns, partition values, DDL, and table properties."""
