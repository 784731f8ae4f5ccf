"""Functions of text and of bytes."""

from __future__ import annotations

from sqlglot import exp

from strandline.sql.expr import call, case, cast, eq, is_null, lit
from strandline.sql.functions import (
    Call,
    Rule,
    Typed,
    Unsuited,
    fitted,
    fixed,
    function,
    native,
    of_type,
    plain,
)
from strandline.sql.nested import outer
from strandline.sql.portable import family, fault
from strandline.sql.regex import (
    groups_of,
    many_matches,
    plain_everywhere,
    python_pattern,
    python_replacement,
)


def _ascii_only(text: exp.Expr) -> exp.Expr:
    """Has the text as many bytes as signs?"""
    return eq(call("STRLEN", text.copy()), exp.Length(this=text.copy()))


def quick(native_name: str, python_name: str, text: exp.Expr) -> exp.Expr:
    """DuckDB's own function for ASCII, Python's for the rest of the world."""
    return case(
        (_ascii_only(text), call(native_name, text.copy())), default=call(python_name, text.copy())
    )


# --- patterns ----------------------------------------------------------------------------------------------


def _pattern(made: Call) -> str:
    return python_pattern(made.written(1, "pattern"))


def _every(made: Call) -> str:
    return many_matches(made.written(1, "pattern"))


def _like(made: Call) -> Typed:
    java = made.written(1, "pattern")
    if plain_everywhere(java):
        return fixed(exp.RegexpLike(this=made.fit(0, "text"), expression=lit(java)), "boolean")
    return fixed(
        call("strandline_matches", made.fit(0, "text"), lit(python_pattern(java))), "boolean"
    )


def _replace(made: Call) -> Typed:
    pattern = _every(made)
    template = python_replacement(made.written(2, "replacement"), pattern)
    if len(made) == 4 and made.number(3, "position") != 1:
        raise Unsuited("it starts behind the first sign")
    return fixed(
        call("strandline_replaced", made.fit(0, "text"), lit(pattern), lit(template)), "string"
    )


def _group(made: Call, pattern: str) -> int:
    group = made.number(2, "group") if len(made) > 2 else 1
    if not 0 <= group <= groups_of(pattern):
        raise Unsuited(f"its pattern has no group {group}", "0 is the whole match")
    return group


def _extract(made: Call) -> Typed:
    pattern = _pattern(made)
    return fixed(
        call("strandline_extracted", made.fit(0, "text"), lit(pattern), lit(_group(made, pattern))),
        "string",
    )


def _extract_all(made: Call) -> Typed:
    pattern = _every(made)
    found = call(
        "strandline_all_extracted", made.fit(0, "text"), lit(pattern), lit(_group(made, pattern))
    )
    return Typed(found, "array<string>")


def _count_matches(made: Call) -> Typed:
    return fixed(call("strandline_match_count", made.fit(0, "text"), lit(_every(made))), "int")


def _place_of_match(made: Call) -> Typed:
    return fixed(call("strandline_match_place", made.fit(0, "text"), lit(_pattern(made))), "int")


def _part_of_match(made: Call) -> Typed:
    """The first match; NULL without one."""
    found = call("strandline_extracted", made.fit(0, "text"), lit(_pattern(made)), lit(0))
    return fixed(exp.Nullif(this=found, expression=lit("")), "string")


def _split(made: Call) -> Typed:
    limit = made.number(2, "limit") if len(made) == 3 else -1
    text, pattern = made.fit(0, "text"), made.written(1, "pattern")
    if not pattern:
        return Typed(call("strandline_split_signs", text, lit(limit)), "array<string>")
    return Typed(
        call("strandline_split", text, lit(many_matches(pattern)), lit(limit)), "array<string>"
    )


# --- parts of texts ----------------------------------------------------------------------------------------


def _concat_ws(made: Call) -> Typed:
    """Texts and lists of texts; those that are NULL are left out."""
    parts = [made.fit(0, "text")]
    for tree, type_ in zip(made.args[1:], made.types[1:], strict=True):
        if outer(type_) == "array":
            if type_ != "array<string>":
                raise Unsuited(
                    f"it takes text or a list of text, and one argument is {of_type(type_)}"
                )
            parts.append(call("strandline_joined_list", tree.copy(), parts[0].copy()))
        else:
            parts.append(fitted(tree.copy(), type_, "text"))
    if len(parts) == 1:
        return fixed(case((is_null(parts[0]), exp.null()), default=lit("")), "string")
    return fixed(call("CONCAT_WS", *parts), "string")


def _locate(made: Call) -> Typed:
    part, text = made.fit(0, "text"), made.fit(1, "text")
    if len(made) == 2:
        return fixed(call("INSTR", text, part), "int")
    return fixed(call("strandline_locate", part, text, made.fit(2, "int")), "int")


def _split_part(made: Call) -> Typed:
    text, mark, place = made.fit(0, "text"), made.fit(1, "text"), made.fit(2, "int")
    zero = (eq(place, lit(0)), cast(fault("split_part"), "string"))
    return fixed(
        case(zero, default=call("strandline_split_part", text, mark, place.copy())), "string"
    )


def _char(n: exp.Expr) -> exp.Expr:
    return case(
        (exp.LT(this=n.copy(), expression=lit(0)), lit("")), default=call("strandline_char", n)
    )


def _elt(made: Call) -> Typed:
    """The text of that number; a number outside is an error."""
    place = made.fit(0, "int")
    branches = [(eq(place.copy(), lit(n)), made.fit(n, "text")) for n in range(1, len(made))]
    missing = (is_null(place.copy()), cast(exp.null(), "string"))
    return fixed(case(missing, *branches, default=cast(fault("elt"), "string")), "string")


def _reverse(made: Call) -> Typed:
    if outer(made.types[0]) == "array":
        return Typed(call("LIST_REVERSE", made.args[0].copy()), made.types[0])
    return fixed(quick("REVERSE", "strandline_reversed", made.fit(0, "text")), "string")


def _btrim(text: exp.Expr, signs: exp.Expr | None = None) -> exp.Expr:
    return call("TRIM", text, signs if signs is not None else lit(" "))


# --- bytes -------------------------------------------------------------------------------------------------


def _sha2(made: Call) -> Typed:
    bits = made.number(1, "length")
    if bits not in (0, 224, 256, 384, 512):
        raise Unsuited(f"there is no digest of {bits} bits", "write 224, 256, 384 or 512")
    value = made.fit(0, "binary")
    if bits in (0, 256):
        return fixed(call("SHA256", value), "string")
    return fixed(call("strandline_sha2", value, lit(bits)), "string")


def _encode(made: Call) -> Typed:
    if made.written(1, "character set").lower() not in ("utf-8", "utf8"):
        raise Unsuited("its character set is not UTF-8")
    return fixed(call("ENCODE", made.fit(0, "text")), "binary")


def _bits(value: exp.Expr) -> exp.Expr:
    return exp.Mul(this=call("OCTET_LENGTH", value), expression=lit(8))


def _compared(name: str) -> Rule:
    """A question about two texts."""

    def rule(made: Call) -> Typed:
        if "binary" in {family(t) for t in made.types}:
            raise Unsuited("it compares bytes", "cast them to string")
        return fixed(call(name, made.fit(0, "text"), made.fit(1, "text")), "boolean")

    return rule


def _padded(made: Call) -> Typed:
    """A text of that length; without signs to add it is only cut."""
    signs = made.fit(2, "text") if len(made) == 3 else lit(" ")
    return fixed(
        call(f"strandline_{made.name}", made.fit(0, "text"), made.fit(1, "int"), signs), "string"
    )


def _length(made: Call) -> Typed:
    if family(made.types[0]) == "binary":
        return fixed(call("OCTET_LENGTH", made.args[0].copy()), "int")
    return fixed(call("LENGTH", made.fit(0, "text")), "int")


TEXT = {
    **plain("upper ucase", "text -> string", lambda s: quick("UPPER", "strandline_upper", s)),
    **plain("lower lcase", "text -> string", lambda s: quick("LOWER", "strandline_lower", s)),
    **function("lpad rpad", "2-3", _padded),
    **function("length len char_length character_length", "1", _length),
    **plain(
        "replace",
        "text text text? -> string",
        lambda s, old, new=None: call("REPLACE", s, old, new or lit("")),
    ),
    **function("rlike regexp regexp_like", "2", _like),
    **function("regexp_replace", "3-4", _replace),
    **function("regexp_extract", "2-3", _extract),
    **function("regexp_extract_all", "2-3", _extract_all),
    **function("regexp_count", "2", _count_matches),
    **function("regexp_instr", "2", _place_of_match),
    **function("regexp_substr", "2", _part_of_match),
    **function("split", "2-3", _split),
    **function("concat_ws", "1-", _concat_ws),
    **plain("instr", "text text -> int", native("INSTR")),
    **function("locate", "2-3", _locate),
    **function("split_part", "3", _split_part),
    **plain("substring_index", "text text int -> string", native("strandline_substring_index")),
    **plain("initcap", "text -> string", native("strandline_initcap")),
    **plain("translate", "text text text -> string", native("TRANSLATE")),
    **function("reverse", "1", _reverse),
    **plain("repeat", "text int -> string", lambda s, n: call("strandline_repeat", s, n)),
    **plain("space", "int -> string", lambda n: call("strandline_repeat", lit(" "), n)),
    **plain("ascii", "text -> int", lambda s: call("strandline_ascii", s)),
    **plain("char chr", "bigint -> string", _char),
    **plain("btrim", "text text? -> string", _btrim),
    **function("startswith", "2", _compared("STARTS_WITH")),
    **function("endswith", "2", _compared("ENDS_WITH")),
    **function("contains", "2", _compared("CONTAINS")),
    **function("elt", "2-", _elt),
    **plain(
        "find_in_set", "text text -> int", lambda s, many: call("strandline_find_in_set", s, many)
    ),
    **plain("levenshtein", "text text -> int", native("strandline_levenshtein")),
    **plain("url_encode", "text -> string", native("strandline_url_encoded")),
    **plain("md5", "binary -> string", native("MD5")),
    **plain("sha sha1", "binary -> string", native("SHA1")),
    **function("sha2", "2", _sha2),
    **plain("crc32", "binary -> bigint", native("strandline_crc32")),
    **plain("base64", "binary -> string", native("strandline_base64")),
    **plain("unhex", "text -> binary", lambda s: call("strandline_unhex", s)),
    **function("encode", "2", _encode),
    **plain("octet_length", "binary -> int", native("OCTET_LENGTH")),
    **plain("bit_length", "binary -> int", _bits),
}
