"""How the rows to write and the table that is there fit together. Columns are added, never dropped."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from strandline.errors import TableError
from strandline.sql.nested import NESTED, outer, parts
from strandline.sql.portable import family
from strandline.strategy.evolution import (
    AddColumn,
    Limits,
    Relax,
    SchemaChange,
    Widen,
)
from strandline.strategy.widening import VOID, Unfit, differences, meeting, nested_type
from strandline.types import Column, Schema
from strandline.words import agree

Evolution = Literal["add", "strict", "off"]
_TEXTED = ("integer", "decimal", "boolean", "date", "timestamp", "timestamp_ntz")
"""Kinds of values whose text says all of them."""


@dataclass(frozen=True)
class Policy:
    """What may become of a table's columns: what the node allows, within what the format can do."""

    limits: Limits
    evolution: Evolution = "add"
    relax_not_null: bool = False
    own: tuple[str, ...] = ()  # columns that the configuration asks for; folded names


@dataclass(frozen=True)
class Stored:
    """The columns of a table as it is: those of strandline, and those that are NOT NULL."""

    columns: Schema
    system: tuple[str, ...] = ()
    required: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fit:
    """The table's columns after this batch: those it had, then the new ones."""

    columns: Schema
    changes: tuple[SchemaChange, ...] = ()
    kept: tuple[Column, ...] = ()  # columns of the table that the rows do not bring
    warnings: tuple[str, ...] = ()

    @property
    def hashes_anew(self) -> bool:
        """Tell whether stored row hashes no longer say whether a row is the same."""
        return any(isinstance(c, Widen) and c.changes_text for c in self.changes)


def fit(rows: Schema, table: Stored | None, label: str, policy: Policy) -> Fit:
    """Final = target ∪ new; what the table cannot hold is an error before anything is written.

    A column without a type is added with its first value, which says its type.
    """
    typed = Schema(tuple(replace(c, type=type_) for c in rows if (type_ := _known(c.type))))
    _refuse_names(typed, label, policy.limits)
    typed, warnings = _with_text(typed, label, policy.limits)
    if table is None:
        return Fit(typed, warnings=warnings)
    ours = table.columns.without(*table.system)
    new = tuple(c for c in typed if c.name not in table.columns)
    kept = tuple(c for c in ours if c.name not in rows)
    wide = _widened(ours, typed, label, policy.limits)
    if policy.evolution == "strict":
        _refuse_difference(ours, typed, new, kept, label, policy)
    if policy.evolution == "off":
        ignored = [c.name for c in new if c.fold not in policy.own]
        new = tuple(c for c in new if c.fold in policy.own)
        wide, told = _unwidened(ours, wide, typed, label)
        warnings += _ignored([*ignored, *told], label)
    widened = [
        d for o, w in zip(ours, wide, strict=True) for d in differences(o.type, w.type, o.name)
    ]
    changes = (*(AddColumn(c) for c in new), *widened)
    relaxed = _relaxed(table, kept, policy)
    return Fit(Schema(wide).plus(*new), (*changes, *relaxed), kept, warnings)


def stored_nulls(table: Stored, fit_: Fit) -> list[str]:
    """The columns that stay NOT NULL."""
    relaxed = {c.name for c in fit_.changes if isinstance(c, Relax)}
    return [name for name in table.required if name not in relaxed]


# --- types -------------------------------------------------------------------------------------------------


def _widened(ours: Schema, rows: Schema, label: str, limits: Limits) -> tuple[Column, ...]:
    """The table's columns, wide enough for the rows."""
    found = []
    for have in ours:
        come = rows.get(have.name)
        try:
            type_ = (
                meeting(have.type, come.type, limits.widenings, have.name) if come else have.type
            )
        except Unfit as unfit:
            assert come is not None
            raise _refused(unfit, have, come, label, limits) from None
        found.append(Column(have.name, type_))
    return tuple(found)


def _refused(unfit: Unfit, have: Column, come: Column, label: str, limits: Limits) -> TableError:
    """What cannot be widened, and what to do so that no value is lost."""
    other = f"{come.name}_{_plain(outer(come.type))}"
    aside = (
        f"keep both: add a rename step: {{operation: rename, params: {{columns: {{{come.name}: {other}}}}}}}, "
        "or write another table"
    )
    text = f"add a cast step: {{operation: cast, params: {{columns: {{{come.name}: string}}}}}}"
    lossless = have.type == "string" and family(come.type) in _TEXTED
    inside = (
        f" (at `{unfit.path}`: {unfit.stored} and {unfit.come})" if unfit.path != have.name else ""
    )
    return TableError(
        f"{label}: column `{have.name}` is {have.type} in the table, but the rows bring {come.type}{inside}, "
        f"and {limits.title} has no type for both that the column can become",
        hint=text if lossless else aside,
    )


def _unwidened(
    ours: Schema, wide: Sequence[Column], rows: Schema, label: str
) -> tuple[tuple[Column, ...], list[str]]:
    """With `off` the table stays as it is: fields that are new inside a struct are ignored, wider types an error."""
    ignored = []
    for have, now in zip(ours, wide, strict=True):
        for change in differences(have.type, now.type, have.name):
            if isinstance(change, Widen):
                come = rows.get(have.name)
                raise TableError(
                    f"{label}: column `{have.name}` is {have.type} in the table, but the rows bring "
                    f"{come.type if come else '?'}, and schema_evolution: off keeps the table as it is",
                    hint="set schema_evolution: add, which widens the column",
                )
            ignored.append(getattr(change, "path", have.name))
    return ours.columns, ignored


def _ignored(names: Sequence[str], label: str) -> tuple[str, ...]:
    if not names:
        return ()
    shown = ", ".join(f"`{name}`" for name in names)
    verb = agree(len(names), "a column that", "columns that")
    return (
        f"{label} lacks {shown}, {verb} the rows bring: ignored, as schema_evolution: off says",
    )


def _refuse_difference(
    ours: Schema,
    rows: Schema,
    new: Sequence[Column],
    kept: Sequence[Column],
    label: str,
    policy: Policy,
) -> None:
    """With `strict` any difference is an error; columns that the configuration asks for are none."""
    told = [f"`{c.name}` ({c.type}) is new" for c in new if c.fold not in policy.own]
    told += [f"`{c.name}` is gone" for c in kept if c.fold not in policy.own]
    for have in ours:
        come = rows.get(have.name)
        if come is not None and come.type != have.type:
            told.append(f"`{have.name}` is {come.type} instead of {have.type}")
    if told:
        raise TableError(
            f"{label}: the rows have other columns than the table: {'; '.join(told)}; "
            "schema_evolution: strict allows no difference",
            hint="bring the columns back to what they were, or set schema_evolution: add",
        )


def _relaxed(table: Stored, kept: Sequence[Column], policy: Policy) -> list[SchemaChange]:
    """Columns that were NOT NULL and vanished, where the node lets them be NULL."""
    gone = {c.fold for c in kept}
    return [Relax(n) for n in table.required if policy.relax_not_null and n.casefold() in gone]


def _known(type_: str) -> str | None:
    """A type without the fields of which no value is known; None when nothing is left to know."""
    kind = outer(type_)
    if kind not in NESTED:
        return None if type_ == VOID else type_
    inner = [(name, _known(part)) for name, part in parts(type_)]
    found = [(name, part) for name, part in inner if part is not None]
    if not found or (kind != "struct" and len(found) < len(inner)):
        return None
    return nested_type(kind, found)


def _with_text(rows: Schema, label: str, limits: Limits) -> tuple[Schema, tuple[str, ...]]:
    """The rows' columns in types that the table holds: a type without any mapping becomes text."""
    found, warnings = [], []
    for c in rows:
        if outer(c.type) == "timestamp_ns":
            raise TableError(
                f"{label}: column `{c.name}` is {c.type}, which a table cannot hold",
                hint=f"add a cast step: {{operation: cast, params: {{columns: {{{c.name}: timestamp_ntz}}}}}}",
            )
        type_ = _texted(c.type, limits)
        if type_ != c.type:
            warnings.append(
                f"{label}: column `{c.name}` is {c.type}, which has no type in the table: kept as text"
            )
        found.append(replace(c, type=type_))
    return Schema(tuple(found)), tuple(warnings)


def _texted(type_: str, limits: Limits) -> str:
    kind = outer(type_)
    if kind in NESTED:
        return nested_type(kind, [(name, _texted(inner, limits)) for name, inner in parts(type_)])
    return type_ if kind in limits.types else "string"


# --- names -------------------------------------------------------------------------------------------------


def _refuse_names(rows: Schema, label: str, limits: Limits) -> None:
    """Some formats know some names not at all."""
    for c in rows:
        for name in (c.name, *_field_names(c.type)):
            if bad := limits.forbidden & set(name):
                shown = ", ".join(repr(b) for b in sorted(bad))
                raise TableError(
                    f"{label}: a {limits.title} table cannot have a column called `{name}`: its name holds {shown}",
                    hint=f"add a rename step: {{operation: rename, params: {{columns: {{'{name}': {_plain(name)}}}}}}}",
                )
        _refuse_twins(c.type)


def _field_names(type_: str) -> Iterator[str]:
    for name, inner in parts(type_):
        if outer(type_) == "struct":
            yield name
        yield from _field_names(inner)


def _refuse_twins(type_: str) -> None:
    """Fields of a struct that differ only in case are refused like columns."""
    inner = parts(type_)
    if outer(type_) == "struct":
        Schema(tuple(Column(name, part) for name, part in inner))
    for _, part in inner:
        _refuse_twins(part)


def _plain(name: str) -> str:
    return re.sub(r"\W+", "_", name).strip("_") or "column"
