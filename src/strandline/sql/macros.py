"""Macros of DuckDB: what takes a value twice, or has no sign of its own there."""

from __future__ import annotations

MACROS = (
    # without the check for zero
    "CREATE TEMP MACRO strandline_quotient(a, b) AS a / b",
    "CREATE TEMP MACRO strandline_rest(a, b) AS a % b",
    """CREATE TEMP MACRO strandline_long(x) AS CASE WHEN ISNAN(x) THEN 0 WHEN x >= 9223372036854775807 THEN
    9223372036854775807 WHEN x <= -9223372036854775808 THEN -9223372036854775808 ELSE CAST(x AS BIGINT) END""",
    "CREATE TEMP MACRO strandline_pmod(a, b) AS IF(a % b < 0, (CAST(a % b AS HUGEINT) + b) % b, a % b)",
    "CREATE TEMP MACRO strandline_pmod_double(a, b) AS IF(a % b < 0, (a % b + b) % b, a % b)",
    "CREATE TEMP MACRO strandline_wide(x) AS CAST(x AS HUGEINT)",
    """CREATE TEMP MACRO strandline_inside(x, bits) AS IF(x BETWEEN -(CAST(1 AS HUGEINT) << bits) AND (CAST(1 AS
    HUGEINT) << bits) - 1, x, NULL)""",
    """CREATE TEMP MACRO strandline_signed(x, bits) AS IF(x >= CAST(1 AS HUGEINT) << (bits - 1), x - (CAST(1 AS
    HUGEINT) << bits), x)""",
    """CREATE TEMP MACRO strandline_shiftleft(x, n, bits) AS strandline_signed( ((CAST(x AS HUGEINT) + (CAST(1 AS
    HUGEINT) << bits)) % (CAST(1 AS HUGEINT) << (bits - (n & (bits - 1))))) * (CAST(1 AS HUGEINT) << (n & (bits
    - 1))), bits)""",
    """CREATE TEMP MACRO strandline_shiftright(x, n, bits) AS (x - IF(x < 0, (CAST(1 AS HUGEINT) << (n & (bits -
    1))) - 1, 0)) // (CAST(1 AS HUGEINT) << (n & (bits - 1)))""",
    """CREATE TEMP MACRO strandline_unsigned(x, n, bits) AS strandline_signed( IF(x < 0, CAST(x AS HUGEINT) +
    (CAST(1 AS HUGEINT) << bits), x) // (CAST(1 AS HUGEINT) << (n & (bits - 1))), bits)""",
    """CREATE TEMP MACRO strandline_half_even(x, unit) AS IF(x < 0, -1, 1) * (ABS(x) // unit + CASE WHEN (ABS(x) %
    unit) * 2 > unit THEN 1 WHEN (ABS(x) % unit) * 2 = unit THEN (ABS(x) // unit) % 2 ELSE 0 END)""",
    """CREATE TEMP MACRO strandline_bucket(v, low, high, n) AS CASE WHEN n <= 0 OR n = 9223372036854775807 OR
    ISNAN(v) OR low = high OR NOT ISFINITE(low) OR NOT ISFINITE(high) THEN NULL WHEN low < high AND v < low OR
    low > high AND v > low THEN 0 WHEN low < high AND v >= high OR low > high AND v <= high THEN n + 1 ELSE
    CAST(TRUNC(IF(low < high, n * (v - low) / (high - low), n * (low - v) / (low - high))) AS BIGINT) + 1 END""",
    # text: a list that is NULL is left out of a text, as the NULLs in it are
    """CREATE TEMP MACRO strandline_joined_list(many, mark) AS IF(many IS NULL OR LEN(LIST_FILTER(many, lambda v: v
    IS NOT NULL)) = 0, NULL, ARRAY_TO_STRING(many, mark))""",
    """CREATE TEMP MACRO strandline_locate(part, t, n) AS CASE WHEN n IS NULL THEN 0 WHEN part IS NULL OR t IS NULL
    THEN NULL WHEN n <= 0 THEN 0 WHEN part = '' THEN 1 WHEN INSTR(SUBSTRING(t, n), part) = 0 THEN 0 ELSE
    INSTR(SUBSTRING(t, n), part) + n - 1 END""",
    """CREATE TEMP MACRO strandline_split_part(t, mark, n) AS IF(mark = '', IF(ABS(n) = 1, t, ''), SPLIT_PART(t,
    mark, n))""",
    "CREATE TEMP MACRO strandline_char(n) AS CHR(CAST(n & 255 AS INT))",
    "CREATE TEMP MACRO strandline_ascii(t) AS IF(t = '', 0, UNICODE(t))",
    """CREATE TEMP MACRO strandline_find_in_set(t, many) AS CASE WHEN t IS NULL OR many IS NULL THEN NULL WHEN
    CONTAINS(t, ',') THEN 0 ELSE COALESCE(LIST_POSITION(STRING_SPLIT(many, ','), t), 0) END""",
    "CREATE TEMP MACRO strandline_repeat(t, n) AS IF(n < 0, '', REPEAT(t, n))",
    r"""CREATE TEMP MACRO strandline_base64(y) AS RTRIM(REGEXP_REPLACE(TO_BASE64(y), '(.{76})', '\1' || CHR(13) ||
    CHR(10), 'g'), CHR(13) || CHR(10))""",
    """CREATE TEMP MACRO strandline_lpad(t, n, signs) AS CASE WHEN n <= 0 THEN LEFT(t || signs, 0)
    WHEN signs = '' THEN LEFT(t, n)
    ELSE LPAD(t, n, signs) END""",
    """CREATE TEMP MACRO strandline_rpad(t, n, signs) AS CASE WHEN n <= 0 THEN LEFT(t || signs, 0)
    WHEN signs = '' THEN LEFT(t, n)
    ELSE RPAD(t, n, signs) END""",
    """CREATE TEMP MACRO strandline_unhex(t) AS IF(REGEXP_FULL_MATCH(t, '[0-9a-fA-F]*'), UNHEX(IF(LENGTH(t) % 2 =
    1, '0' || t, t)), NULL)""",
    # times
    "CREATE TEMP MACRO strandline_per(n, unit) AS (n - (n % unit + unit) % unit) // unit",
    "CREATE TEMP MACRO strandline_since(n, unit) AS MAKE_TIMESTAMP(CAST(CAST(n AS HUGEINT) * unit AS BIGINT))",
    """CREATE TEMP MACRO strandline_digits_of(n, width) AS LPAD(CAST(n AS VARCHAR), CAST(GREATEST(width,
    LENGTH(CAST(n AS VARCHAR))) AS INT), '0')""",
    "CREATE TEMP MACRO strandline_twelve(h) AS IF(h % 12 = 0, 12, h % 12)",
    """CREATE TEMP MACRO strandline_month(t) AS CAST((POSITION(LEFT(LOWER(t), 3) IN
    'janfebmaraprmayjunjulaugsepoctnovdec') + 2) // 3 AS VARCHAR)""",
    "CREATE TEMP MACRO strandline_dayofweek(day) AS DATE_PART('dow', day) + 1",
    "CREATE TEMP MACRO strandline_weekday(day) AS (DATE_PART('dow', day) + 6) % 7",
    """CREATE TEMP MACRO strandline_next_day(day, dow) AS day + CAST(IF((dow - DATE_PART('dow', day) + 7) % 7 = 0,
    7, (dow - DATE_PART('dow', day) + 7) % 7) AS INT)""",
    """CREATE TEMP MACRO strandline_second_of_month(t) AS (DATE_PART('day', t) - 1) * 86400 + DATE_PART('hour', t)
    * 3600 + DATE_PART('minute', t) * 60 + DATE_PART('second', t)""",
    """CREATE TEMP MACRO strandline_months(a, b) AS CAST((DATE_PART('year', a) - DATE_PART('year', b)) * 12 +
    DATE_PART('month', a) - DATE_PART('month', b) AS DOUBLE) + IF(DATE_PART('day', a) = DATE_PART('day', b) OR
    CAST(a AS DATE) = LAST_DAY(a) AND CAST(b AS DATE) = LAST_DAY(b), CAST(0 AS DOUBLE),
    CAST(strandline_second_of_month(a) - strandline_second_of_month(b) AS DOUBLE) / CAST(2678400 AS DOUBLE))""",
    "CREATE TEMP MACRO strandline_eighth(x) AS ROUND(x * CAST(100000000 AS DOUBLE)) / CAST(100000000 AS DOUBLE)",
    # lists
    "CREATE TEMP MACRO strandline_compact(many) AS LIST_FILTER(many, lambda v: v IS NOT NULL)",
    "CREATE TEMP MACRO strandline_there(many) AS COALESCE(LIST_FILTER(many, lambda v: v IS NOT NULL), [])",
    # -0.0 before 0.0, as Java sorts them
    """CREATE TEMP MACRO strandline_sorted(many) AS LIST_TRANSFORM(LIST_SORT(LIST_TRANSFORM( LIST_FILTER(many,
    lambda v: v IS NOT NULL), lambda v: {'v': v, 's': NOT SIGNBIT(v)})), lambda w: w.v)""",
    """CREATE TEMP MACRO strandline_percentile(many, share) AS CASE WHEN many IS NULL OR LEN(many) = 0 THEN NULL
    WHEN FLOOR((LEN(many) - 1) * share) = CEIL((LEN(many) - 1) * share) THEN many[CAST(FLOOR((LEN(many) - 1) *
    share) AS INT) + 1] WHEN many[CAST(FLOOR((LEN(many) - 1) * share) AS INT) + 1] = many[CAST(CEIL((LEN(many) -
    1) * share) AS INT) + 1] THEN many[CAST(FLOOR((LEN(many) - 1) * share) AS INT) + 1] ELSE (CEIL((LEN(many) -
    1) * share) - (LEN(many) - 1) * share) * many[CAST(FLOOR((LEN(many) - 1) * share) AS INT) + 1] + ((LEN(many)
    - 1) * share - FLOOR((LEN(many) - 1) * share)) * many[CAST(CEIL((LEN(many) - 1) * share) AS INT) + 1] END""",
    """CREATE TEMP MACRO strandline_contains(many, one) AS CASE WHEN many IS NULL OR one IS NULL THEN NULL WHEN
    LIST_CONTAINS(many, one) THEN true WHEN LEN(LIST_FILTER(many, lambda v: v IS NULL)) > 0 THEN NULL ELSE false
    END""",
    """CREATE TEMP MACRO strandline_position(many, one) AS IF(many IS NULL OR one IS NULL, NULL,
    COALESCE(LIST_POSITION(many, one), 0))""",
    """CREATE TEMP MACRO strandline_removed(many, one) AS IF(one IS NULL, NULL, LIST_FILTER(many, lambda v: v IS
    NULL OR v <> one))""",
    "CREATE TEMP MACRO strandline_appended(many, one) AS IF(many IS NULL, NULL, LIST_APPEND(many, one))",
    "CREATE TEMP MACRO strandline_prepended(many, one) AS IF(many IS NULL, NULL, LIST_PREPEND(one, many))",
    """CREATE TEMP MACRO strandline_distinct(many) AS LIST_FILTER(many, lambda v, n: LIST_POSITION(many, v) = n OR
    v IS NULL AND n = LIST_POSITION(LIST_TRANSFORM(many, lambda w: w IS NULL), true))""",
    """CREATE TEMP MACRO strandline_union(a, b) AS IF(a IS NULL OR b IS NULL, NULL,
    strandline_distinct(LIST_CONCAT(a, b)))""",
    """CREATE TEMP MACRO strandline_holds(many, one) AS IF(one IS NULL, LIST_CONTAINS(LIST_TRANSFORM(many, lambda
    w: w IS NULL), true), LIST_CONTAINS(many, one))""",
    """CREATE TEMP MACRO strandline_except(a, b) AS IF(b IS NULL, NULL, LIST_FILTER(strandline_distinct(a), lambda
    v: NOT strandline_holds(b, v)))""",
    """CREATE TEMP MACRO strandline_intersect(a, b) AS IF(b IS NULL, NULL, LIST_FILTER(strandline_distinct(a),
    lambda v: strandline_holds(b, v)))""",
    """CREATE TEMP MACRO strandline_overlap(a, b) AS CASE WHEN a IS NULL OR b IS NULL THEN NULL WHEN
    LIST_HAS_ANY(a, b) THEN true WHEN LEN(a) > 0 AND LEN(b) > 0 AND (LEN(LIST_FILTER(a, lambda v: v IS NULL)) >
    0 OR LEN(LIST_FILTER(b, lambda v: v IS NULL)) > 0) THEN NULL ELSE false END""",
    """CREATE TEMP MACRO strandline_list_text(many, mark) AS IF(many IS NULL OR mark IS NULL, NULL,
    COALESCE(ARRAY_TO_STRING(many, mark), ''))""",
    """CREATE TEMP MACRO strandline_list_text_with(many, mark, other) AS IF(many IS NULL OR mark IS NULL OR other
    IS NULL, NULL, COALESCE(ARRAY_TO_STRING(LIST_TRANSFORM(many, lambda v: COALESCE(v, other)), mark), ''))""",
    """CREATE TEMP MACRO strandline_slice(many, start, count) AS CASE WHEN count = 0 OR start < 0 AND -start >
    LEN(many) THEN many[1:0] ELSE LIST_SLICE(many, IF(start > 0, start, LEN(many) + start + 1), IF(start > 0,
    start, LEN(many) + start + 1) + count - 1) END""",
    """CREATE TEMP MACRO strandline_list_repeat(one, n) AS IF(n IS NULL, NULL, LIST_TRANSFORM(RANGE(GREATEST(n,
    0)), lambda v: one))""",
    """CREATE TEMP MACRO strandline_flat(many) AS IF(LEN(LIST_FILTER(many, lambda v: v IS NULL)) > 0, NULL,
    FLATTEN(many))""",
    "CREATE TEMP MACRO strandline_sequence(a, b) AS IF(a <= b, GENERATE_SERIES(a, b), GENERATE_SERIES(a, b, -1))",
)
