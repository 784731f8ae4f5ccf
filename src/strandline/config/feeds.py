"""How a table's change feed is read, and where that cannot be right."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from strandline.config.base import Model, Text, Whole, repeated
from strandline.config.positions import Mistake

FEED_KEYS = ("primary_keys", "deduplication_columns", "load_id", "from_version")


class FeedOptions(Model):
    """How a change feed is read.

    **Business problem:** a Silver table has millions of rows, and a Gold table should follow its changes and its
    deletes without reading it whole each night.
    **Solution:** the first run reads the table once; every later one reads what was committed since. `primary_keys`
    name the rows that belong together (default: the write keys): a key is deleted when none of its rows is left.
    `deduplication_columns` keep, of several rows of a key that came, the one of the newest commit; where commits cannot
    tell (the first load), the highest of all columns. `load_id` keeps a position of its own. `from_version` starts the
    first run with the changes of that version, itself included, instead of the whole table; when everything is computed
    again later, what was there before it comes along.

    ```yaml
    sources:
      - {connection: silver, table: customers, alias: c, cdc_strategy: cdf, primary_keys: [customer_id]}
    read: {connection: silver, table: customers, incremental: {mode: cdf}}
    read: {connection: silver, table: events, incremental: {mode: cdf, load_id: nightly, from_version: 12}}
    ```
    """

    primary_keys: list[Text] = Field(default_factory=list)
    deduplication_columns: list[Text] = Field(default_factory=list)
    load_id: Text | None = None
    from_version: Whole | None = None


def feed_mistakes(options: FeedOptions, *, used: bool, instead: str) -> Iterator[Mistake]:
    """Keys of a feed where none is read, and names that stand twice."""
    for key in FEED_KEYS:
        if not used and key in options.model_fields_set:
            yield Mistake((key,), f"`{key}` is for a change feed", f"add {instead}, or remove it")
    for key in ("primary_keys", "deduplication_columns"):
        for index, name in repeated(getattr(options, key)):
            yield Mistake(
                (key, index),
                f"column `{name}` stands twice in `{key}`; case does not matter in names",
            )
