"""Random histories of one table, by seed, for Delta Spark and for this package.

A history is a list of steps. A step is a SQL statement, which both run as it is, or
rows for a DataFrame writer.
"""

import random
from dataclasses import asdict, dataclass, field
from typing import Any

COLUMNS = {
    "id": "BIGINT",
    "p": "STRING",
    "v": "INT",
    "d": "DECIMAL(10, 2)",
    "x": "DOUBLE",
    "at": "TIMESTAMP",
    "s": "STRUCT<a: INT, b: STRING>",
}
_PARTS = ("a", "b", "c d", "é%", None)
_CONDITIONS = (
    "id > 5",
    "p = 'a'",
    "p IS NULL",
    "p IN ('b', 'c d')",
    "v IS NULL",
    "v < 0 OR id IN (1, 2)",
    "s.a > 2",
    "d >= 1.5 AND p <> 'a'",
    "at < TIMESTAMP'2026-02-01 00:00:00'",
    "isnan(x)",
)
_VALUES = {
    "v": ("v + 1", "NULL", "CAST(id AS INT)", "length(p)"),
    "d": ("d * 2", "1.25", "coalesce(d, 0) - 1"),
    "s.b": ("'new'", "p"),
    "s": ("NULL", "named_struct('a', v, 'b', p)"),
    "p": ("'a'", "upper(p)", "NULL"),
    "x": ("x / 3", "v"),
    "at": ("at + INTERVAL 1 DAY", "TIMESTAMP'2026-03-01 12:00:00.000001'"),
}


@dataclass(frozen=True)
class Step:
    """A statement, or rows to write.

    Args:
        sql: the statement, about the table `{t}`.
        rows: the rows, as a query.
        mode: the mode of a write.
        options: the options of a write, by Delta Spark's names.
        back: how many versions before the newest the version `{before}` is.
    """

    sql: str = ""
    rows: str = ""
    mode: str = "append"
    options: dict[str, str] = field(default_factory=dict)
    back: int = 0

    def json(self) -> dict[str, Any]:
        """The step as a worker gets it."""
        return asdict(self)


def history(seed: int, steps: int = 8) -> list[Step]:
    """Return the steps that a seed makes: the table, its first rows, and more steps."""
    return _Author(seed).history(steps)


class _Author:
    """What writes a history.

    Args:
        seed: says everything that is chosen.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._partitioned = self._random.random() < 0.7
        self._mapped = self._random.random() < 0.15
        self._vectors = self._random.random() < 0.2
        self._added = 0

    def history(self, steps: int) -> list[Step]:
        kinds = {
            self._append: 2,
            self._insert: 2,
            self._overwrite: 1,
            self._overwrite_partitions: 2,
            self._replace_where: 1,
            self._delete: 2,
            self._update: 3,
            self._merge: 6,
            self._optimize: 1,
            self._restore: 1,
            self._add_column: 1,
            self._evolve: 2,
        }
        chosen = self._random.choices(list(kinds), list(kinds.values()), k=steps)
        return [self._create(), self._append(), *(step() for step in chosen)]

    def _create(self) -> Step:
        properties = {"delta.enableChangeDataFeed": "true"}
        if self._mapped:
            properties["delta.columnMapping.mode"] = "name"
        if self._vectors:
            properties["delta.enableDeletionVectors"] = "true"
        columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
        listed = ", ".join(f"'{key}' = '{text}'" for key, text in properties.items())
        layout = " PARTITIONED BY (p)" if self._partitioned else ""
        return Step(
            f"CREATE TABLE {{t}} ({columns}) USING delta{layout} LOCATION '{{folder}}' "
            f"TBLPROPERTIES ({listed})"
        )

    # ---- rows

    def _rows(self, keys: list[int | None], more: str | None = None) -> str:
        """Return a query of one row for each key, with the column `more`."""
        rows = [self._row(key, more is not None) for key in keys]
        fields = [*COLUMNS.items(), *([(more, "INT")] if more else [])]
        typed = ", ".join(f"CAST({name} AS {kind}) AS {name}" for name, kind in fields)
        names = ", ".join(name for name, _ in fields)
        values = ", ".join(rows) if rows else self._row(None, more is not None)
        where = "" if rows else " WHERE false"
        return f"SELECT {typed} FROM VALUES {values} AS given({names}){where}"

    def _row(self, key: int | None, wider: bool) -> str:
        chance, choose = self._random.random, self._random.choice
        part = choose(_PARTS)
        values = [
            "NULL" if key is None else str(key),
            "NULL" if part is None else f"'{part}'",
            "NULL" if chance() < 0.2 else str(self._random.randint(-5, 5)),
            "NULL" if chance() < 0.2 else f"{self._random.randint(-500, 500) / 100}",
            choose(["NULL", "double('NaN')", "-0.5e0", "1e10", "double('Infinity')"]),
            f"timestamp_micros({self._random.randint(17672, 17736) * 10**11 + 1})",
            "NULL"
            if chance() < 0.2
            else f"named_struct('a', {self._random.randint(0, 5)}, 'b', 'é')",
        ]
        return f"({', '.join([*values, *(['7'] if wider else [])])})"

    def _keys(self, most: int = 8) -> list[int | None]:
        keys: list[int | None] = list(range(12))
        return self._random.sample([*keys, None], self._random.randint(0, most))

    # ---- steps

    def _append(self) -> Step:
        return Step(rows=self._rows(self._keys()))

    def _insert(self) -> Step:
        if self._random.random() < 0.5:
            return Step(f"INSERT INTO {{t}} (id, p) VALUES ({self._key()}, 'a')")
        return Step(f"INSERT INTO {{t}} BY NAME {self._rows(self._keys(3))}")

    def _key(self) -> int:
        return self._random.randint(0, 11)

    def _overwrite(self) -> Step:
        return Step(rows=self._rows(self._keys()), mode="overwrite")

    def _overwrite_partitions(self) -> Step:
        options = {"partitionOverwriteMode": "dynamic"}
        return Step(rows=self._rows(self._keys(3)), mode="overwrite", options=options)

    def _replace_where(self) -> Step:
        condition = self._random.choice(["p = 'a'", "id > 5", "p IS NULL"])
        rows = f"SELECT * FROM ({self._rows(self._keys())}) WHERE {condition}"
        return Step(rows=rows, mode="overwrite", options={"replaceWhere": condition})

    def _condition(self) -> str:
        return self._random.choice(_CONDITIONS)

    def _delete(self) -> Step:
        return Step(f"DELETE FROM {{t}} WHERE {self._condition()}")

    def _update(self) -> Step:
        where = f" WHERE {self._condition()}" if self._random.random() < 0.9 else ""
        return Step(f"UPDATE {{t}} SET {self._assigned()}{where}")

    def _assigned(self) -> str:
        names = self._random.sample(list(_VALUES), self._random.randint(1, 3))
        if {"s", "s.b"} <= {*names}:
            names.remove("s")
        return ", ".join(f"{n} = {self._random.choice(_VALUES[n])}" for n in names)

    def _optimize(self) -> Step:
        return Step(f"OPTIMIZE {{t}}{self._random.choice(['', ' ZORDER BY (id)'])}")

    def _restore(self) -> Step:
        back = self._random.randint(1, 4)
        return Step("RESTORE TABLE {t} TO VERSION AS OF {before}", back=back)

    def _add_column(self) -> Step:
        return Step(f"ALTER TABLE {{t}} ADD COLUMNS ({self._new_column()} INT)")

    def _new_column(self) -> str:
        self._added += 1
        return f"more{self._added}"

    def _evolve(self) -> Step:
        rows = self._rows(self._keys(3), self._new_column())
        return Step(rows=rows, options={"mergeSchema": "true"})

    def _merge(self) -> Step:
        keys = self._keys(6)
        if keys and self._random.random() < 0.15:
            keys.append(keys[0])
        evolves = self._random.random() < 0.2
        source = self._rows(keys, self._new_column() if evolves else None)
        extra = self._random.choice(["", "", " AND t.p = 'a'", " AND r.v > 0"])
        clauses = " ".join(self._clauses())
        return Step(
            f"MERGE {'WITH SCHEMA EVOLUTION ' if evolves else ''}INTO {{t}} AS t "
            f"USING ({source}) AS r ON t.id = r.id{extra} {clauses}"
        )

    def _clauses(self) -> list[str]:
        matched = [
            "UPDATE SET *",
            "UPDATE SET v = r.v, p = r.p",
            "UPDATE SET d = t.d + r.d, t.s.b = r.p",
            "DELETE",
        ]
        missing = ["INSERT *", "INSERT (id, p, v) VALUES (r.id, r.p, r.v * 2)"]
        unmatched = ["UPDATE SET v = -t.v", "DELETE", "UPDATE SET p = 'a', x = 0"]
        clauses = [
            *self._some("MATCHED", matched, ["r.v > 0", "t.p = 'a'", "t.v < r.v"]),
            *self._some("NOT MATCHED", missing, ["r.v > 0", "r.p IS NULL"]),
            *self._some(
                "NOT MATCHED BY SOURCE", unmatched, ["t.id > 8", "t.v < 0"], 0.4
            ),
        ]
        return clauses or ["WHEN NOT MATCHED THEN INSERT *"]

    def _some(
        self, when: str, actions: list[str], conditions: list[str], chance: float = 0.8
    ) -> list[str]:
        """Return up to two clauses, of which only the last may be unconditional."""
        if self._random.random() > chance:
            return []
        found = []
        chosen = self._random.sample(actions, self._random.randint(1, 2))
        for i, action in enumerate(chosen):
            last = i == len(chosen) - 1
            free = last and self._random.random() < 0.6
            condition = "" if free else f" AND {self._random.choice(conditions)}"
            found.append(f"WHEN {when}{condition} THEN {action}")
        return found
