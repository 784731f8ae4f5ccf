"""How a read is limited to what may be new: a high-water mark, a rolling window, or a list of watermarks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from typing import Annotated, Literal

from pydantic import Field

from strandline.config.base import NO_FLAG, Model, Text, sql_text
from strandline.config.feeds import FeedOptions, feed_mistakes
from strandline.config.positions import Mistake

Scalar = int | float | str | datetime | date
_UNITS = {"w": "weeks", "d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_DURATION = re.compile(r"\s*(\d+)\s*([wdhms])", re.IGNORECASE)


def duration(text: str) -> timedelta | None:
    """`2h`, `7d`, `1h30m`; None for anything else."""
    parts = _DURATION.findall(text)
    if not parts or _DURATION.sub("", text).strip():
        return None
    try:
        return sum((timedelta(**{_UNITS[unit.lower()]: int(n)}) for n, unit in parts), timedelta())
    except OverflowError:
        return None


def _check_expression(text: str) -> None:
    from strandline.sql.bounded import (
        check_expression,
    )  # brings sqlglot, which `strandline --help` need not pay for

    check_expression(text)


class IncrementalConfig(FeedOptions):
    """Read only what may be new since the last run.

    **Business problem:** the table has millions of rows and a few thousand change in a day.
    **Solution:** `stateful` remembers the highest value of a column and reads from there on, minus `watermark_lag`
    for rows that arrive late; `rolling_window` reads the last days again, each time. The lower bound is always read
    again; rows that are there already are never written twice. Rows without a value in the column are read each time.
    Files may do without `column`: then the time they were last written counts, and `append` takes a file again only
    when it was written again, and then what that file did not have before. `cdf` reads the change feed of a lake
    table, deletes included; it takes `primary_keys`, `deduplication_columns`, `load_id` and `from_version`.

    ```yaml
    incremental: {mode: stateful, column: updated_at, watermark_lag: 2h, initial_value: "2024-01-01"}
    incremental: {mode: rolling_window, column: order_date, lookback: 7d}
    incremental: {mode: cdf, primary_keys: [order_id]}
    ```
    """

    mode: Literal["stateful", "rolling_window", "cdf"]
    column: Text | None = None
    watermark_lag: Annotated[int | float | str | None, NO_FLAG] = None
    initial_value: Annotated[Scalar | None, NO_FLAG] = None
    lookback: str | None = None

    @property
    def lag(self) -> timedelta | float | int | None:
        """How far below the mark to read again: a time, or a plain number for a column of numbers."""
        lag = self.watermark_lag
        return duration(lag) if isinstance(lag, str) else lag

    def mistakes(self) -> Iterator[Mistake]:
        yield from feed_mistakes(self, used=self.mode == "cdf", instead="mode: cdf")
        if self.mode != "cdf":
            yield from self._mark_mistakes()
            return
        for key in ("column", "watermark_lag", "initial_value", "lookback"):
            if getattr(self, key) is not None:
                yield Mistake(
                    (key,),
                    f"`{key}` does nothing with mode: cdf",
                    "the table's versions say what is new",
                )

    def _mark_mistakes(self) -> Iterator[Mistake]:
        stateful = self.mode == "stateful"
        for key in ("lookback",) if stateful else ("watermark_lag", "initial_value"):
            if getattr(self, key) is not None:
                hint = "use watermark_lag" if stateful else "use mode: stateful"
                yield Mistake((key,), f"`{key}` does nothing with mode: {self.mode}", hint)
        if not stateful and self.lookback is None:
            yield Mistake(
                ("lookback",), "mode: rolling_window needs `lookback`", "for example lookback: 7d"
            )
        if not stateful and self.column is None:
            yield Mistake(
                ("column",),
                "mode: rolling_window needs `column`",
                "name a date or timestamp column",
            )
        for key in ("watermark_lag", "lookback"):
            value = getattr(self, key)
            if isinstance(value, str) and duration(value) is None:
                yield Mistake(
                    (key,), f"{value!r} is not a duration", "write it like 30m, 2h, 7d or 1h30m"
                )
            if isinstance(value, int | float) and value < 0:
                yield Mistake(
                    (key,),
                    "a negative lag would skip rows",
                    "give how far back to read, as 0 or more",
                )


class WatermarkConfig(Model):
    """One entry of a list of watermarks.

    **Business problem:** a row is new when any of several columns says so, or only when all do.
    **Solution:** each entry reads `column_name >= expression`. Within one `operation_group`, from first to last, an
    entry's `operation` joins it to those before it; groups are joined by AND. `'${last_value}'` is the highest value
    seen so far; it may be shifted with date_sub, date_add, + - * / and CAST. Until there is one, the entry limits
    nothing. Rows without a value in the column are read each time.

    ```yaml
    watermark:
      - {column_name: created_at, operation: or, expression: "'${last_value}'"}
      - {column_name: updated_at, operation: or, expression: "date_sub('${last_value}', 7)"}
    ```
    """

    column_name: Text
    operation: Literal["and", "or"] = "and"
    operation_group: int | str | None = None
    expression: Annotated[Text, sql_text(_check_expression)] = "'${last_value}'"


class SettingsConfig(Model):
    """Switches of a node.

    **Business problem:** a row that was deleted simply stops coming.
    **Solution:** `delete_missing` infers it: what lies in the watermark's window and did not come is gone.

    ```yaml
    settings: {delete_missing: true}
    ```
    """

    delete_missing: bool = Field(default=False)
