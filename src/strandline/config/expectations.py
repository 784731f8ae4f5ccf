"""What rows must fulfil: the expectations of a `validate` step, one model per check."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from strandline.config.base import NO_FLAG, Model, Text, Whole
from strandline.config.increments import duration
from strandline.config.positions import Mistake

Value = bool | int | float | datetime | date | str
Bound = Annotated[int | float | datetime | date | str, NO_FLAG]
Severity = Literal["fail", "warn", "quarantine"]


class Expectation(Model):
    """What all checks share.

    `severity: fail` (the default) refuses the batch before anything is written, `warn` counts the failing rows in a
    warning, `quarantine` puts them aside with their reasons, in `<table>__quarantine`, and writes the others. `name`
    is what messages and reasons call the check. With `where` only the rows that fulfil a condition are checked.
    """

    ROWS: ClassVar[bool] = True
    """Does the check judge single rows? One that judges the rows as a whole cannot say which of them are wrong."""

    @property
    def row_by_row(self) -> bool:
        """Does each row stand for itself? Else the same row may pass in one batch and fail in another."""
        return self.ROWS

    name: Text | None = None
    severity: Severity = "fail"
    where: Text | None = None

    @property
    def judged(self) -> list[list[str]]:
        """The columns that are judged: each list by itself, the columns of a list together."""
        return [[]]

    @property
    def conditions(self) -> list[str]:
        """The SQL expressions of a check: what they name must be there."""
        return [self.where] if self.where else []

    def mistakes(self) -> Iterator[Mistake]:
        if self.severity == "quarantine" and not self.ROWS:
            check = getattr(self, "check", "")
            yield Mistake(
                ("severity",),
                f"`{check}` judges the rows as a whole, so there is no row to put into quarantine",
                "use severity: fail or warn",
            )


class OfColumns(Expectation):
    """A check of one column (`column`) or of several (`columns`)."""

    column: Text | None = None
    columns: list[Text] = Field(default_factory=list)

    @property
    def judged(self) -> list[list[str]]:
        return [[name] for name in self.named]

    @property
    def named(self) -> list[str]:
        """The columns, however they are given."""
        return [self.column] if self.column else list(self.columns)

    def mistakes(self) -> Iterator[Mistake]:
        yield from super().mistakes()
        if self.column and self.columns:
            yield Mistake(("columns",), "`column` and `columns` exclude each other", "keep one")
        if not self.named:
            yield Mistake((), "one of `column` and `columns` is missing")


class NotNullCheck(OfColumns):
    """Every row has a value.

    **Business problem:** a customer without a number cannot be found again.
    **Solution:** name the columns that must have a value. An empty text is a value, and so is NaN.

    ```yaml
    - {check: not_null, columns: [customer_id, email], severity: quarantine}
    ```
    """

    check: Literal["not_null"]


class UniqueCheck(OfColumns):
    """No two rows have the same value; several columns are compared together.

    **Business problem:** the same order comes twice, and nobody knows which one is right.
    **Solution:** all rows of a doubled key are put aside, or refused. A row with a NULL in one of the columns is no
    double of any other, as in SQL. Rows are compared with the other rows that the step sees, not with the table.

    ```yaml
    - {check: unique, columns: [order_id, line], severity: quarantine}
    ```
    """

    check: Literal["unique"]

    @property
    def judged(self) -> list[list[str]]:
        return [self.named]

    @property
    def row_by_row(self) -> bool:
        return False


class AcceptedValuesCheck(OfColumns):
    """A value is one of a list; NULL passes, unless `not_null` is asked for too.

    **Business problem:** a new status appears at the source, and a report silently leaves it out.
    **Solution:** list the values that are known.

    ```yaml
    - {check: accepted_values, column: status, values: [open, paid, cancelled], severity: warn}
    ```
    """

    check: Literal["accepted_values"]
    values: list[Value] = Field(min_length=1)


class RangeCheck(OfColumns):
    """A value lies between `min` and `max`, both included; NULL passes, NaN does not.

    **Business problem:** a negative amount, or a date of birth in the future, breaks every sum after it.
    **Solution:** give one bound or both: numbers, texts, or dates in quotes.

    ```yaml
    - {check: range, column: amount, min: 0, max: 1000000, severity: quarantine}
    - {check: range, column: ordered_at, min: "2020-01-01", where: "status <> 'draft'"}
    ```
    """

    check: Literal["range"]
    min: Bound | None = None
    max: Bound | None = None

    def mistakes(self) -> Iterator[Mistake]:
        yield from super().mistakes()
        if self.min is None and self.max is None:
            yield Mistake((), "one of `min` and `max` is missing")


class RegexCheck(OfColumns):
    """A text matches a pattern (found anywhere in it, as with `rlike`); NULL passes.

    **Business problem:** what stands in `email` is sometimes a phone number.
    **Solution:** a regular expression in Java's syntax, as in Spark SQL; anchor it by `^` and `$`.

    ```yaml
    - {check: regex, column: email, pattern: "^[^@]+@[^@]+$", severity: quarantine}
    ```
    """

    check: Literal["regex"]
    pattern: Text


class RelationshipCheck(Expectation):
    """Each value exists in a column of another lake table, among its living rows; NULL passes.

    **Business problem:** an order names a customer that does not exist.
    **Solution:** name the table of the customers. The node that writes it runs before this one. `field` is the column
    there; without it, it has the same name.

    ```yaml
    - {check: relationship, column: customer_id, connection: silver, table: customers, field: id, severity: quarantine}
    ```
    """

    check: Literal["relationship"]
    column: Text
    connection: Text
    table: Text
    field: Text | None = None

    @property
    def judged(self) -> list[list[str]]:
        return [[self.column]]


class SqlCheck(Expectation):
    """A SQL expression is true for every row; NULL is not true.

    **Business problem:** the end of a contract lies before its begin.
    **Solution:** a Spark SQL expression over the columns of the row.

    ```yaml
    - {check: sql, name: ends after it begins, expression: "valid_to IS NULL OR valid_to > valid_from"}
    ```
    """

    check: Literal["sql"]
    expression: Text

    @property
    def conditions(self) -> list[str]:
        return [*super().conditions, self.expression]


class RowCountCheck(Expectation):
    """The number of rows lies between `min` and `max`, both included: `fail` or `warn`.

    **Business problem:** an extract that broke off half-way looks like a small day.
    **Solution:** say how many rows an extract has at least.

    ```yaml
    - {check: row_count, min: 1000}
    ```
    """

    ROWS: ClassVar[bool] = False
    check: Literal["row_count"]
    min: Whole | None = None
    max: Whole | None = None

    def mistakes(self) -> Iterator[Mistake]:
        yield from super().mistakes()
        if self.min is None and self.max is None:
            yield Mistake((), "one of `min` and `max` is missing")


class FreshnessCheck(Expectation):
    """The newest value of a date or time column is not older than `max_age`: `fail` or `warn`.

    **Business problem:** the source stopped two days ago, and every run since was green.
    **Solution:** say how old the newest row may be at the start of the run. Without a row, or with NULLs alone, the
    rows are not fresh. A time without a zone counts as UTC.

    ```yaml
    - {check: freshness, column: updated_at, max_age: 1d, severity: warn}
    ```
    """

    ROWS: ClassVar[bool] = False
    check: Literal["freshness"]
    column: Text
    max_age: Text

    @property
    def judged(self) -> list[list[str]]:
        return [[self.column]]

    def mistakes(self) -> Iterator[Mistake]:
        yield from super().mistakes()
        if duration(self.max_age) is None:
            yield Mistake(
                ("max_age",), f"`{self.max_age}` is not a duration", "for example 12h, 2d, 1h30m"
            )


class FailingRowsCheck(Expectation):
    """A query finds no row: it returns the rows that are wrong, as a test of dbt does: `fail` or `warn`.

    **Business problem:** debits and credits of a booking must sum up to the same.
    **Solution:** a Spark SQL query over the rows, which it calls `source`.

    ```yaml
    - check: failing_rows
      name: bookings balance
      query: SELECT booking_id FROM source GROUP BY booking_id HAVING sum(amount) <> 0
    ```
    """

    ROWS: ClassVar[bool] = False
    check: Literal["failing_rows"]
    query: Text


Check = Annotated[
    NotNullCheck
    | UniqueCheck
    | AcceptedValuesCheck
    | RangeCheck
    | RegexCheck
    | RelationshipCheck
    | SqlCheck
    | RowCountCheck
    | FreshnessCheck
    | FailingRowsCheck,
    Field(discriminator="check"),
]


class ValidateConfig(Model):
    """Check the rows where this step stands; write only those that are right.

    **Business problem:** one bad row of the source stops the whole load, or lands unseen in a report.
    **Solution:** say what is expected of the rows. A check refuses the batch (`fail`), warns (`warn`), or puts the
    failing rows into `<table>__quarantine` with their reasons (`quarantine`) and writes the others. A step before the
    others is a contract with the source; a step after them checks what will be written. `strandline quarantine`
    lists what is put aside, and puts mended rows through the node again.

    **Recipe 1: a contract with the source, before anything is cast**
    ```yaml
    - operation: validate
      params:
        expectations:
          - {check: not_null, column: order_id, severity: quarantine}
          - {check: regex, column: amount, pattern: "^-?[0-9]+([.][0-9]+)?$", severity: quarantine}
          - {check: row_count, min: 1}
    ```

    **Recipe 2: a check of what will be written**
    ```yaml
    - operation: validate
      params:
        expectations:
          - {check: unique, columns: [order_id]}
          - {check: relationship, column: customer_id, connection: silver, table: customers, severity: quarantine}
          - {check: accepted_values, column: status, values: [open, paid], severity: warn}
    ```
    """

    expectations: list[Check] = Field(min_length=1)

    @property
    def quarantines(self) -> bool:
        """Can the step put rows aside?"""
        return any(e.severity == "quarantine" for e in self.expectations)


def validations(steps: list[Any]) -> Iterator[tuple[int, ValidateConfig]]:
    """The validate steps among the steps of a node, with their places; the steps are valid."""
    for index, step in enumerate(steps):
        if step.operation == "validate":
            yield index, ValidateConfig.model_validate(step.params)
