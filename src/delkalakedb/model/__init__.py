"""Pure Delta: actions, codec, schema, statistics, predicates, conflicts. No I/O."""
