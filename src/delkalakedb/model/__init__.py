"""Pure Delta: actions, codec, schemas, statistics, predicates, rules. No I/O."""
