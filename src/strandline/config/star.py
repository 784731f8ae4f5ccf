"""What makes a table part of a star: keys of its own, members for facts without one, and keys into dimensions."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from strandline.config.base import Count, Model, Text, repeated
from strandline.config.positions import Mistake

UNKNOWN, NOT_APPLICABLE = -1, -2
SKELETON = "_is_skeleton"
"""The column that tells a row which only facts know of."""


class SurrogateKeyConfig(Model):
    """A key of a table's own, one for each row; in `scd2` one for each version.

    **Business problem:** the key of a source is wide, may be re-used, and does not tell one version of a row from the
    next.
    **Solution:** a BIGINT that strandline gives once and never changes. `hash` makes it from the keys (in `scd2` also
    from `_valid_from`), so that it needs no counter; two keys with one hash are found before the commit. `sequence`
    counts 1, 2, 3 … and never gives a number twice. `identity` is a column that the table format fills in: strandline
    gives its keys before the commit, so use `hash` or `sequence`.

    ```yaml
    write:
      connection: gold
      table: dim_customer
      mode: scd2
      keys: [customer_id]
      surrogate_key: {column: customer_sk, strategy: hash}
    ```
    """

    column: Text
    strategy: Literal["hash", "sequence", "identity"] = "hash"

    def mistakes(self) -> Iterator[Mistake]:
        if self.strategy == "identity":
            message = (
                "`identity` cannot be used: an identity column is filled in by the commit, and strandline gives keys "
                "before it, so that a run that is killed never gives a key twice (deltalake cannot write such columns)"
            )
            hint = "use strategy: hash, or strategy: sequence for small consecutive numbers"
            yield Mistake(("strategy",), message, hint)


class DefaultMembersConfig(Model):
    """The values of the two members that every dimension can have: −1, unknown, and −2, not applicable.

    **Business problem:** a fact without a customer must still be found by a join with the customers.
    **Solution:** two rows that are in the table from its first load on. Text is `Unknown` and `Not applicable` unless a
    column is given here, everything else is NULL; a change here changes the rows. Reads leave them out unless they say
    `include_members: true`.

    ```yaml
    write:
      connection: gold
      table: dim_customer
      mode: upsert
      keys: [customer_id]
      surrogate_key: {column: customer_sk}
      default_members: {unknown: {name: "?", country: CH}, not_applicable: {name: none}}
    ```
    """

    unknown: dict[str, Any] = Field(default_factory=dict)
    not_applicable: dict[str, Any] = Field(default_factory=dict)

    def members(self) -> list[tuple[int, str, dict[str, Any]]]:
        """The key of each member, its text, and the values given for it."""
        return [
            (UNKNOWN, "Unknown", self.unknown),
            (NOT_APPLICABLE, "Not applicable", self.not_applicable),
        ]


class ForeignKeyConfig(Model):
    """A key into a dimension, found by strandline.

    **Business problem:** each fact needs the surrogate key of its member, as the member was when the fact happened, and
    facts arrive before their members, and members' histories after the facts.
    **Solution:** `lookup` says which columns of the fact are the keys of the dimension (a node's name), `event_time`
    when the fact happened: it finds the version of an `scd2` dimension that was valid then; before the first version it
    is the first, and without `event_time`, or when none was valid, the newest. A NULL in the lookup is −1, unknown.

    `on_missing` says what to do when the dimension has no row of the key: `default` takes −1, `skeleton` adds a row to
    the dimension that has only its keys, and that the real member fills in later under the same surrogate key.
    `repoint: true` points stored facts to another version when later history says so.

    ```yaml
    foreign_keys:
      - {column: customer_sk, dimension: dim_customer, lookup: {customer_id: customer_id}, event_time: ordered_at,
         on_missing: skeleton, repoint: true}
    ```
    """

    column: Text
    dimension: Text
    lookup: dict[Text, Text] = Field(min_length=1)
    event_time: Text | None = None
    on_missing: Literal["skeleton", "default", "quarantine"] = "default"
    repoint: bool = False

    def mistakes(self) -> Iterator[Mistake]:
        for _, name in repeated(list(self.lookup.values())):
            message = f"two columns of the fact are looked up as `{name}`"
            yield Mistake(("lookup",), message, "name each key of the dimension once")


class HolidayConfig(Model):
    """A day that is a holiday.

    **Business problem:** sales on a holiday are not compared with those of a working day.
    **Solution:** its date, and its name.

    ```yaml
    holidays: [{date: 2024-12-25, name: Christmas Day}]
    ```
    """

    date: date
    name: Text | None = None


class CalendarConfig(Model):
    """The rows of a date dimension, one for each day.

    **Business problem:** every star has a table of days, and weeks, fiscal years and holidays are easy to get wrong.
    **Solution:** a node without a source. Each day from `from` to `to` has its `date_key` (20240131), names and numbers
    of year, quarter, month and weekday, the ISO week and its year, the fiscal year that starts in month
    `fiscal_year_starts` and is called by the year in which it ends, and the `holidays`.

    ```yaml
    nodes:
      - name: dim_date
        calendar: {from: 2020-01-01, to: 2030-12-31, fiscal_year_starts: 7, holidays: [2024-12-25]}
        write: {connection: gold, table: dim_date, mode: overwrite}
    ```
    """

    from_: date = Field(alias="from")
    to: date
    fiscal_year_starts: Annotated[Count, Field(le=12)] = 1
    holidays: list[HolidayConfig] = Field(default_factory=list)

    @field_validator("holidays", mode="before")
    @classmethod
    def _plain_days(cls, value: object) -> object:
        """A day alone is a holiday without a name."""
        if not isinstance(value, list):
            return value
        return [{"date": v} if isinstance(v, str | date) else v for v in value]

    def mistakes(self) -> Iterator[Mistake]:
        if self.to < self.from_:
            yield Mistake(("to",), f"{self.to} is before {self.from_}", "exchange `from` and `to`")
        if (self.to - self.from_).days >= 100_000:
            yield Mistake(("to",), "a calendar has at most 100,000 days", "choose fewer years")
        for index, text in repeated([str(h.date) for h in self.holidays]):
            yield Mistake(("holidays", index), f"{text} stands twice among the holidays")


class BridgeConfig(Model):
    """A table between a fact and a dimension of which it has several members.

    **Business problem:** an account has several owners, and its balance must not be counted once for each of them.
    **Solution:** each row says by its `weight` which share of its `group` belongs to its `member`. The weights of a
    group sum to 1, which is checked before the commit; where weights are NULL, or the column is missing, they share
    equally what the others of the group leave.

    ```yaml
    bridge: {group: account_id, member: owner_id, weight: share}
    ```
    """

    group: Text
    member: Text
    weight: Text = "weight"
