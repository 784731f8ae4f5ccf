"""The rows of a date dimension, as SQL over days that are counted up from the first one."""

from __future__ import annotations

from datetime import date

from strandline.config.star import CalendarConfig, HolidayConfig

_DAYS = """WITH digits AS (SELECT 0 AS d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4
  UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9),
numbers AS (SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d AS n
  FROM digits AS a CROSS JOIN digits AS b CROSS JOIN digits AS c CROSS JOIN digits AS e CROSS JOIN digits AS f),
days AS (SELECT date_add({first}, n) AS day FROM numbers WHERE n < {count}),
holidays AS ({holidays}),
parts AS (SELECT day, year(day) AS y, month(day) AS m, weekday(day) AS w,
  (month(day) + 12 - {starts}) % 12 AS f FROM days)
SELECT CAST(y * 10000 + m * 100 + day(p.day) AS INT) AS date_key, p.day AS date, y AS year,
  quarter(p.day) AS quarter, concat(CAST(y AS STRING), '-Q', CAST(quarter(p.day) AS STRING)) AS quarter_name,
  m AS month, {months} AS month_name, day(p.day) AS day, dayofyear(p.day) AS day_of_year,
  w + 1 AS weekday, {weekdays} AS weekday_name, w >= 5 AS is_weekend,
  year(date_add(p.day, 3 - w)) AS iso_year, weekofyear(p.day) AS iso_week,
  CAST(CASE WHEN {starts} > 1 AND m >= {starts} THEN y + 1 ELSE y END AS INT) AS fiscal_year,
  CAST(floor(f / 3) + 1 AS INT) AS fiscal_quarter, CAST(f + 1 AS INT) AS fiscal_month,
  h.holiday IS NOT NULL AS is_holiday, h.holiday_name AS holiday_name
FROM parts AS p LEFT JOIN holidays AS h ON p.day = h.holiday"""

MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def calendar_sql(config: CalendarConfig) -> str:
    """The query, in Spark's SQL, that makes the days of a calendar."""
    months = " ".join(f"WHEN {i} THEN '{name}'" for i, name in enumerate(MONTHS, start=1))
    weekdays = " ".join(f"WHEN {i} THEN '{name}'" for i, name in enumerate(WEEKDAYS))
    return _DAYS.format(
        first=_day(config.from_),
        count=(config.to - config.from_).days + 1,
        starts=config.fiscal_year_starts,
        months=f"CASE m {months} END",
        weekdays=f"CASE w {weekdays} END",
        holidays=_holidays(config.holidays),
    )


def _day(value: date) -> str:
    return f"CAST('{value.isoformat()}' AS DATE)"


def _holidays(given: list[HolidayConfig]) -> str:
    """The holidays as rows; none of them where none are given."""
    rows = [
        f"SELECT {_day(h.date)} AS holiday, CAST({_text(h.name)} AS STRING) AS holiday_name"
        for h in given
    ]
    none = "SELECT CAST(NULL AS DATE) AS holiday, CAST(NULL AS STRING) AS holiday_name"
    return " UNION ALL ".join(rows) or f"{none} WHERE 1 = 0"


def _text(value: str | None) -> str:
    if value is None:
        return "NULL"
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
