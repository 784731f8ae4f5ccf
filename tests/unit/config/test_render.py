# ruff: noqa: E501 – one line per case reads as a table
"""Jinja2 in the texts: values keep their types, and nothing runs away."""

from __future__ import annotations

import datetime as dt
import time
from typing import Any

import pytest
from tests.unit.config.conftest import Problems, Write, changed

from strandline.config.load import load_project

VARS = "vars: {n: 4, names: [a, b], flag: true, start: 2020-01-01, both: \"{{ var('n') }}-{{ var('flag') }}\", me: \"{{ var('me') }}\"}\n"


def rendered(write: Write, text: str, **files: str) -> Any:
    variables = (
        VARS.replace(", me: \"{{ var('me') }}\"", "").rstrip("}\n")
        + ", result: '"
        + text.replace("'", "''")
        + "'}\n"
    )
    main = changed("engine: pandas\n", f"engine: pandas\n{variables}")
    return load_project(write(main, **files)).config.vars["result"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{{ var('n') }}", 4),
        (" {{ var('n') + 1 }} ", " 5 "),
        ("{{- var('n') -}}", 4),
        ("{{ -var('n') }}", -4),
        ("{{ var('names') }}", ["a", "b"]),
        ("{{ var('flag') }}", True),
        ("n={{ var('n') }}", "n=4"),
        ("{{ var('n') }}{{ var('n') }}", "44"),
        ("{{ var('both') }}", "4-True"),
        ("{{ var('start') }}", dt.date(2020, 1, 1)),
        ("{{ var('x', 'd') }}", "d"),
        ("{{ env('UNSET_X', 'd') }}", "d"),
        ("{{ env('SET_X') }}!", "value!"),
        ("{% for n in var('names') %}{{ n }},{% endfor %}", "a,b,"),
        ("{% if var('flag') %}yes{% endif %}", "yes"),
        ("{{ var('names') | join('+') | upper }}", "A+B"),
        ("{{ 'a-b'.replace('-', '_') }}", "a_b"),
        ("{{ 'a-b' | replace('-', '_') }}", "a_b"),
        ("${env:X}", "${env:X}"),
    ],
)
def test_values(write: Write, monkeypatch: pytest.MonkeyPatch, text: str, value: Any) -> None:
    monkeypatch.setenv("SET_X", "value")
    assert rendered(write, text) == value


def test_a_native_value_reaches_the_model(write: Write) -> None:
    main = changed("keys: [customer_id]", "keys: \"{{ var('names') }}\"")
    assert load_project(write(VARS.replace(", me: \"{{ var('me') }}\"", "") + main)).config.nodes[
        1
    ].write.keys == [
        "a",
        "b",
    ]


MISTAKES = {
    "unknown var": ("{{ var('nmes') }}", "there is no var `nmes`", "did you mean `names` or `me`?"),
    "unset": ("{{ env('UNSET_X') }}", "the environment variable `UNSET_X` is not set", "env('UNSET_X', '…')"),
    "a bare name": ("{{ names }}", "'names' is undefined", "{{ var('names') }}"),
    "a circle": ("{{ var('me') }}", "refer to each other in a circle", None),
    "syntax": ("{{ var('n' }}", "this template cannot be read", None),
    "types": ("{{ var('n') + 'a' }}", "this template cannot be rendered", None),
    "a function": ("{{ var }}", "not a plain value", None),
    "the sandbox": ("{{ ''.__class__.__mro__ }}", "unsafe", None),
    "the sandbox, in a text": ("x {{ ''.__class__.__mro__ }}", "unsafe", None),
    "macro": ("{% macro f() %}{% endmacro %}", "`macro` is not allowed", None),
    "include": ("{% include '/etc/passwd' %}", "`include` is not allowed", None),
    "a giant text": ("{{ 'a' * 10**9 }}", "too large", None),
    "a giant list": ("{{ [1] * 10**9 }}", "too large", None),
    "a giant number": ("{{ 10 ** 10 ** 9 }}", "too large", None),
    "a giant width": ("{{ '%999999999d' % 1 }}", "does not format texts", None),
    "a giant format": ("{{ '{:>999999999}'.format(1) }}", "unsafe", None),
    "a giant margin": ("{{ 'a'.ljust(10**9) }}", "unsafe", None),
    "giant replacements": ("{{ ('a' * 9999).replace('a', 'b' * 9999) }}", "too large", None),
    "giant filters": ("{{ ('a' * 9999) | replace('a', 'b' * 9999) }}", "too large", None),
    "lists in lists": ("{{ [[1] * 9999] * 9999 }}", "too large", None),
    "a long range": ("{% for i in range(10**9) %}x{% endfor %}", "too long", None),
    "a native range": ("{{ range(10**9) }}", "too long", None),
    "loops in loops": ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "rounds", None),
    "doubling": ("{% for i in range(60) %}{{ 'a' * 100000 }}{% endfor %}", "too large", None),
    "very deep": ("{{ " + "(" * 2000 + "1" + ")" * 2000 + " }}", "", None),
}  # fmt: skip


@pytest.mark.parametrize(("text", "message", "hint"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes(problems: Problems, text: str, message: str, hint: str | None) -> None:
    main = (
        VARS.rstrip()
        + "\n"
        + changed(
            "table: customers, mode: append",
            f"table: '{text.replace(chr(39), chr(39) * 2)}', mode: append",
        )
    )
    start = time.monotonic()
    found = [p for p in problems(main) if p.key == "nodes[bronze_customers].write.table"]
    assert time.monotonic() - start < 2
    assert len(found) == 1
    assert (found[0].file, found[0].line) == ("strandline.yaml", 12)
    assert message in found[0].message
    assert hint is None or hint in (found[0].hint or "")


BOMBS = {
    "lists": "[\"{{{{ var('a{0}') }}}}\", \"{{{{ var('a{0}') }}}}\"]",
    "sums": "\"{{{{ var('a{0}') + var('a{0}') }}}}\"",
    "chain": "\"{{{{ var('a{0}') }}}}\"",
}


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
def test_vars_do_not_multiply_without_end(problems: Problems, text: str) -> None:
    chain = "".join(f"  a{i}: {text.format(i + 1)}\n" for i in range(200))
    start = time.monotonic()
    found = problems(changed("engine: pandas\n", f"vars:\n{chain}  a200: [1, 2]\n"))
    assert time.monotonic() - start < 10
    assert all("too large" in p.message for p in found)
    assert found


def test_includes_bring_vars(write: Write) -> None:
    main = changed(
        "engine: pandas", "engine: pandas\ninclude: [\"{{ var('file', 'more') }}.yaml\"]"
    ).replace("project: shop", "project: \"{{ var('who') }}\"")
    assert load_project(write(main, more="vars: {who: me}\n")).config.project == "me"
