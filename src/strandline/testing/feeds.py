"""What following changes means, in plain Python: a table's net change, and small queries over three tables.

The queries are of the class that is followed change by change: filters, projections, inner and left joins of up to
three tables, GROUP BY. `rows` evaluates one over whole tables, and `written` says what a table is after such a result;
whatever was followed must end up there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strandline.testing.oracle import rank

Row = Mapping[str, Any]
Tables = Mapping[str, Sequence[Row]]

COLUMNS = {
    "o": [("id", "bigint"), ("cid", "bigint"), ("kind", "string"), ("x", "bigint")],
    "c": [("cid", "bigint"), ("name", "string"), ("rid", "bigint")],
    "r": [("rid", "bigint"), ("rn", "string")],
}
KEYS = {"o": "id", "c": "cid", "r": "rid"}


def net(
    old: Iterable[Row], new: Iterable[Row]
) -> tuple[Counter[tuple[Any, ...]], Counter[tuple[Any, ...]]]:
    """The rows that came and those that went between two versions, each as often as it did."""
    before, after = (Counter(tuple(row.values()) for row in rows) for rows in (old, new))
    return after - before, before - after


@dataclass(frozen=True)
class Writing:
    """What decides which rows of a result come and go."""

    keys: Sequence[str]
    sequence_by: str | None = None
    delete_when: Callable[[Row], bool] | None = None


def written(stored: Mapping[Any, Row], result: Iterable[Row], how: Writing) -> dict[Any, Row]:
    """A table by its keys, with flags, after a whole result: what is not in it is gone, older rows overwrite nothing.

    That a key is there is so whatever its sequence, unless rows say themselves that they are gone.
    """
    table: dict[Any, Row] = {key: {**row, "_is_deleted": True} for key, row in stored.items()}
    by = how.sequence_by
    for row in result:
        key = tuple(row[k] for k in how.keys)
        old = stored.get(key)
        if old is not None and by and rank(row[by]) < rank(old[by]):
            table[key] = old if how.delete_when else {**old, "_is_deleted": False}
        elif how.delete_when and how.delete_when(row):
            table[key] = {**(old or row), **({by: row[by]} if by else {}), "_is_deleted": True}
        else:
            table[key] = {**row, "_is_deleted": False}
    return table


@dataclass(frozen=True)
class Query:
    """One query over o, and perhaps c and r."""

    c: str = ""  # how it is joined: inner, left, or not
    r: str = ""
    where: str = ""
    group: str = ""

    @property
    def keys(self) -> list[str]:
        return [self.group.split(".")[1]] if self.group else ["id"]

    @property
    def tables(self) -> list[str]:
        return ["o", *(t for t in ("c", "r") if getattr(self, t))]

    @property
    def number(self) -> str:
        """A number in its result that rises and falls."""
        return "total" if self.group else "x1"

    def sql(self) -> str:
        joins = [f"{self.c.upper()} JOIN c ON o.cid = c.cid"] if self.c else []
        joins += (
            [f"{self.r.upper()} JOIN r ON {'c' if self.c else 'o'}.rid = r.rid"] if self.r else []
        )
        where = [f"WHERE {self.where}"] if self.where else []
        if self.group:
            best = ["max(c.name) AS best"] if self.c else []
            chosen = [
                f"{self.group} AS {self.keys[0]}",
                "count(*) AS n",
                "sum(o.x) AS total",
                *best,
            ]
            return " ".join(
                ["SELECT", ", ".join(chosen), "FROM o", *joins, *where, "GROUP BY", self.group]
            )
        chosen = [
            "o.id",
            "o.x + 1 AS x1",
            *(["c.name"] if self.c else []),
            *(["r.rn"] if self.r else []),
        ]
        return " ".join(["SELECT", ", ".join(chosen), "FROM o", *joins, *where])

    def rows(self, tables: Tables) -> list[dict[str, Any]]:
        """The result over whole tables."""
        found: list[dict[str, Row]] = [{"o": row} for row in tables["o"]]
        if self.c:
            found = list(_joined(found, "c", tables["c"], self.c, lambda at: at["o"]["cid"], "cid"))
        if self.r:
            found = list(_joined(found, "r", tables["r"], self.r, lambda at: at["c"]["rid"], "rid"))
        found = [at for at in found if CONDITIONS[self.where](at)]
        return self._grouped(found) if self.group else [self._one(at) for at in found]

    def _one(self, at: Mapping[str, Row]) -> dict[str, Any]:
        row = {"id": at["o"]["id"], "x1": None if at["o"]["x"] is None else at["o"]["x"] + 1}
        return (
            row
            | ({"name": at["c"]["name"]} if self.c else {})
            | ({"rn": at["r"]["rn"]} if self.r else {})
        )

    def _grouped(self, found: Sequence[Mapping[str, Row]]) -> list[dict[str, Any]]:
        table, column = self.group.split(".")
        groups: dict[Any, list[Mapping[str, Row]]] = {}
        for at in found:
            groups.setdefault(at[table][column], []).append(at)
        result = []
        for value, members in groups.items():
            numbers = [at["o"]["x"] for at in members if at["o"]["x"] is not None]
            row = {column: value, "n": len(members), "total": sum(numbers) if numbers else None}
            if self.c:
                row["best"] = max(
                    (at["c"]["name"] for at in members if at["c"]["name"] is not None), default=None
                )
            result.append(row)
        return result


def _joined(
    left: Sequence[dict[str, Row]],
    name: str,
    right: Sequence[Row],
    kind: str,
    by: Callable[[Any], Any],
    column: str,
) -> Iterable[dict[str, Row]]:
    nothing = {n: None for n, _ in COLUMNS[name]}
    for at in left:
        value = by(at)
        partners = [row for row in right if value is not None and row[column] == value]
        for row in partners or ([nothing] if kind == "left" else []):
            yield {**at, name: row}


CONDITIONS: Mapping[str, Callable[[Mapping[str, Row]], bool]] = {
    "": lambda _: True,
    "o.x > 1": lambda at: at["o"]["x"] is not None and at["o"]["x"] > 1,
    "c.name IS NULL": lambda at: at["c"]["name"] is None,
    "c.name <> 'a' AND o.kind = 'p'": lambda at: (
        at["c"]["name"] not in (None, "a") and at["o"]["kind"] == "p"
    ),
    "coalesce(r.rn, 'none') <> 'y'": lambda at: at["r"]["rn"] != "y",
}

QUERIES = [
    Query(),
    Query(where="o.x > 1"),
    Query(group="o.kind"),
    Query(c="inner"),
    Query(c="left"),
    Query(c="left", where="c.name IS NULL"),
    Query(c="inner", where="c.name <> 'a' AND o.kind = 'p'"),
    Query(c="inner", group="c.name"),
    Query(c="left", group="o.kind"),
    Query(c="inner", r="inner", group="c.name"),
    Query(c="left", r="left", where="coalesce(r.rn, 'none') <> 'y'"),
    Query(c="inner", r="left"),
]
