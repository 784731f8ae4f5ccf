"""The names of Spark's functions that the local engine knows, by what they are for.

`docs/sql.md` lists them, and the tests ask each of them on both engines.
"""

from __future__ import annotations

from collections.abc import Mapping

PARSED: Mapping[str, str] = {
    "Logic": "boolean cast coalesce date double exists float greatest if ifnull int least nullif nvl string timestamp "
    "try_cast",
    "Numbers": "abs ceil ceiling floor mod round",
    "Text": "concat ilike left like ltrim position right rtrim substr substring trim",
    "Time": "date_add date_diff date_sub date_trunc dateadd datediff day dayofmonth extract hour last_day minute "
    "month quarter trunc year",
    "Sums": "avg count count_if max mean min sum",
    "Windows": "dense_rank first_value lag last_value lead rank row_number",
}
"""Functions that sqlglot has a class for, with rules by class in `sql/typing.py`."""

CALLED: Mapping[str, str] = {
    "Logic": "equal_null isnan isnotnull isnull nanvl nvl2",
    "Numbers": "bin bit_count bit_get bround cbrt degrees e exp factorial getbit hex ln log log10 log2 negative pi "
    "pmod positive pow power radians rint shiftleft shiftright shiftrightunsigned sign signum sqrt try_add "
    "try_divide try_mod try_multiply try_subtract width_bucket",
    "Text": "ascii base64 bit_length btrim char char_length character_length chr concat_ws contains crc32 elt encode "
    "endswith find_in_set initcap instr lcase len length levenshtein locate lower lpad md5 octet_length "
    "regexp regexp_count regexp_extract regexp_extract_all regexp_instr regexp_like regexp_replace "
    "regexp_substr repeat replace reverse rlike rpad sha sha1 sha2 space split split_part startswith "
    "substring_index translate ucase unhex upper url_encode",
    "Time": "add_months curdate current_date current_timestamp current_timezone date_format date_from_unix_date "
    "date_part datepart dayname dayofweek dayofyear from_unixtime localtimestamp make_date monthname "
    "months_between next_day now second timestamp_micros timestamp_millis timestamp_seconds to_date "
    "to_timestamp to_unix_timestamp try_to_date try_to_timestamp unix_date unix_micros unix_millis "
    "unix_seconds unix_timestamp weekday weekofyear",
    "Lists": "array array_append array_compact array_contains array_distinct array_except array_intersect array_join "
    "array_max array_min array_position array_prepend array_remove array_repeat array_size array_sort "
    "array_union arrays_overlap cardinality element_at flatten get named_struct sequence size slice "
    "sort_array try_element_at",
    "Sums": "any array_agg bit_and bit_or bit_xor bool_and bool_or collect_list collect_set corr covar_pop covar_samp "
    "every max_by median min_by percentile regr_count some std stddev stddev_pop stddev_samp var_pop var_samp "
    "variance",
    "Windows": "cume_dist nth_value ntile percent_rank",
}
"""Functions that stay calls under their own names, with rules by name in `sql/functions_*.py`."""

# aggregates that sqlglot has no class for, or one that writes something else for Spark
_AGGREGATES = """
any any_value approx_percentile approx_top_k array_agg bit_and bit_or bit_xor bitmap_and_agg bitmap_construct_agg
bitmap_or_agg bool_and bool_or collect_list collect_set corr count_min_sketch covar_pop covar_samp every first
histogram_numeric hll_sketch_agg hll_union_agg kurtosis last listagg max_by median min_by mode percentile
percentile_approx percentile_cont percentile_disc regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope
regr_sxx regr_sxy regr_syy skewness some std stddev stddev_pop stddev_samp string_agg try_avg try_sum var_pop var_samp
variance
"""


INSTEAD: Mapping[str, str] = {
    "any_value": "its answer depends on the order of the rows: use min or max",
    "approx_count_distinct": "its answer is an estimate: use count(DISTINCT …)",
    "approx_percentile": "its answer is an estimate: use percentile",
    "first": "its answer depends on the order of the rows: use min_by, or first_value with ORDER BY",
    "last": "its answer depends on the order of the rows: use max_by, or last_value with ORDER BY",
    "mode": "its answer depends on the order of the rows where values are equally frequent",
    "percentile_approx": "its answer is an estimate: use percentile",
}
"""What to write for functions whose answer Spark itself does not promise."""


def names(table: Mapping[str, str]) -> frozenset[str]:
    """All names of a table."""
    return frozenset(name for some in table.values() for name in some.split())


PARSED_NAMES, CALLED_NAMES = names(PARSED), names(CALLED)
KNOWN_NAMES = PARSED_NAMES | CALLED_NAMES
AGGREGATE_NAMES = frozenset(_AGGREGATES.split())
