"""Jinja2 in the texts of a project: `{{ var('x') }}`, `{{ env('NAME') }}`, in a sandbox with limits."""

from __future__ import annotations

import datetime as dt
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jinja2 import StrictUndefined, TemplateError, TemplateSyntaxError, Undefined, nodes
from jinja2.exceptions import UndefinedError
from jinja2.sandbox import SandboxedEnvironment

from strandline.config.positions import Loc, Mistake
from strandline.errors import did_you_mean

MAX_RESULT = 1_000_000
MAX_TOTAL = 5_000_000
MAX_CHAIN = 50  # vars that refer to vars
MAX_ROUNDS = 100_000
"""What one text may become, what all may become together, and how often all loops may turn; see `_weight`."""

_UNSAFE_METHODS = {
    "ljust",
    "rjust",
    "center",
    "zfill",
    "expandtabs",
    "format",
    "format_map",
    "translate",
}
_FILTERS = (
    "abs", "capitalize", "default", "d", "first", "float", "int", "join", "last", "length", "count", "list", "lower",
    "map", "max", "min", "reject", "replace", "reverse", "round", "select", "sort", "string", "sum", "title", "tojson",
    "trim", "unique", "upper",
)  # fmt: skip
_STATEMENTS = (nodes.Output, nodes.If, nodes.For, nodes.Assign, nodes.Expr)
_PLAIN = (str, int, float, dt.date, type(None))
_MISSING = object()


class RenderError(Exception):
    """A text cannot be rendered."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


class Renderer:
    """Renders the texts of one project. Vars may refer to each other; each is rendered when first asked for."""

    def __init__(self) -> None:
        self.env_names: set[str] = set()
        self._raw: dict[str, Any] = {}
        self._ready: dict[str, Any] = {}
        self._failed: dict[str, tuple[str, str | None]] = {}
        self._open: list[str] = []
        self._total = 0
        self._jinja = _Sandbox(self.var, self.env)

    def declare(self, variables: Mapping[str, Any]) -> None:
        """Make the `vars` of a file known."""
        self._raw.update(variables)

    def render(self, value: Any, loc: Loc, mistakes: list[Mistake]) -> Any:
        """The value with all texts in it rendered; a text that cannot be stays as it is, with a mistake."""
        if isinstance(value, dict):
            return {key: self.render(inner, (*loc, key), mistakes) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.render(inner, (*loc, i), mistakes) for i, inner in enumerate(value)]
        if not isinstance(value, str) or not re.search(r"\{[{%#]", value):
            return value
        try:
            if self._total > MAX_TOTAL:
                raise RenderError("the templates of this project become too large")
            result, weight = self._jinja.text(value)
        except RenderError as mistake:
            mistakes.append(Mistake(loc, mistake.message, mistake.hint))
            return value
        self._total += weight
        return result

    def var(self, name: str, default: Any = _MISSING) -> Any:
        """Look up a value of `vars`."""
        _require_name("var", name)
        if name not in self._raw:
            if default is not _MISSING:
                return default
            hint = (
                did_you_mean(name, self._raw)
                or f"declare it: vars: {{{name}: …}}, or give a default: var('{name}', '…')"
            )
            raise RenderError(f"there is no var `{name}`", hint)
        if name not in self._ready and name not in self._failed:
            self._render_var(name)
        if name in self._failed:
            raise RenderError(*self._failed[name])
        return self._ready[name]

    def _render_var(self, name: str) -> None:
        if name in self._open:
            raise RenderError(
                f"the vars {' → '.join([*self._open, name])} refer to each other in a circle"
            )
        if len(self._open) >= MAX_CHAIN:
            raise RenderError(
                f"more than {MAX_CHAIN} vars refer to each other in a row: the template becomes too large"
            )
        self._open.append(name)
        inside: list[Mistake] = []
        value = self.render(self._raw[name], (), inside)
        self._open.pop()
        if inside:  # kept: vars that refer to failed vars would try them again and again
            self._failed[name] = (_of_var(name, inside[0].message), inside[0].hint)
        elif _weight(value, MAX_RESULT) > MAX_RESULT:
            self._failed[name] = (f"var `{name}` becomes too large", None)
        else:
            self._ready[name] = value

    def env(self, name: str, default: Any = _MISSING) -> Any:
        """Look up an environment variable that is no secret."""
        _require_name("env", name)
        self.env_names.add(name)
        if name in os.environ:
            return os.environ[name]
        if default is not _MISSING:
            return default
        # No nearest names: the environment is not the project's to list.
        raise RenderError(
            f"the environment variable `{name}` is not set",
            f"set it, or give a default: env('{name}', '…')",
        )


class _Sandbox(SandboxedEnvironment):
    """Jinja2 without what can run away: no unbounded loops, no giant texts, no macros, imports or randomness."""

    intercepted_binops = frozenset(["*", "**", "%"])

    def __init__(self, var: Any, env: Any) -> None:
        super().__init__(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
        self.globals = {"var": var, "env": env, "range": self._range, "_rounds": self._counted}
        self.filters = {name: self.filters[name] for name in _FILTERS}
        self.filters["replace"] = _replaced
        self._rounds_left = MAX_ROUNDS

    def text(self, source: str) -> tuple[Any, int]:
        """The rendered text, and its weight; the value itself when the text is nothing but `{{ expression }}`."""
        try:
            tree = self.parse(source)
            self._restrict(tree)
            if expression := _only_expression(source, tree):
                value = self.compile_expression(expression, undefined_to_none=False)()
                weight = _weight(value, MAX_RESULT)
                if weight > MAX_RESULT:
                    raise RenderError("this template becomes too large")
                return _plain(value), weight
            text = self._joined(self.from_string(tree).generate())
            return text, len(text)
        except TemplateSyntaxError as error:
            where = f" (line {error.lineno} of the text)" if source.count("\n") > 1 else ""
            raise RenderError(f"this template cannot be read: {error.message}{where}") from error
        except UndefinedError as error:
            raise RenderError(f"{error.message}", _bare_name_hint(error)) from error
        except (
            TemplateError,
            TypeError,
            ValueError,
            ArithmeticError,
            LookupError,
            AttributeError,
        ) as error:
            raise RenderError(f"this template cannot be rendered: {error}") from error
        except (RecursionError, MemoryError) as error:
            raise RenderError("this template is nested too deeply or becomes too large") from error

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr not in _UNSAFE_METHODS and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        """No format methods at all: a width in them can ask for gigabytes."""

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "*" and _product(left, right) > MAX_RESULT:
            raise RenderError("this template becomes too large")
        if operator == "**" and (abs(left) > 10**9 or abs(right) > 64):
            raise RenderError("this number becomes too large")
        if operator == "%" and isinstance(left, str):
            raise RenderError("`%` does not format texts here", "join them with ~")
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, function: Any, /, *arguments: Any, **named: Any) -> Any:
        owner = getattr(function, "__self__", None)
        if isinstance(owner, str) and getattr(function, "__name__", "") == "replace":
            return _replaced(owner, *arguments, **named)
        return super().call(context, function, *arguments, **named)

    def _restrict(self, tree: nodes.Template) -> None:
        for statement in tree.find_all(nodes.Stmt):
            if not isinstance(statement, _STATEMENTS):
                raise RenderError(
                    f"`{type(statement).__name__.lower()}` is not allowed in a template here"
                )
        for loop in list(tree.find_all(nodes.For)):
            loop.iter = nodes.Call(nodes.Name("_rounds", "load"), [loop.iter], [], None, None)
        tree.set_environment(self)

    def _range(self, *bounds: int) -> range:
        rounds = range(*bounds)
        if len(rounds) > self._rounds_left:
            raise RenderError(f"a range of {len(rounds):,} is too long")
        return rounds

    def _counted(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._rounds_left -= 1
            if self._rounds_left < 0:
                raise RenderError(f"the loops of this project take more than {MAX_ROUNDS:,} rounds")
            yield item

    def _joined(self, parts: Iterable[str]) -> str:
        joined, size = [], 0
        for part in parts:
            size += len(part)
            if size > MAX_RESULT:
                raise RenderError("this template becomes too large")
            joined.append(part)
        return "".join(joined)


def _only_expression(source: str, tree: nodes.Template) -> str | None:
    """The expression, when the text is a single `{{ … }}`: then its value keeps its type."""
    body = tree.body
    if len(body) != 1 or not isinstance(body[0], nodes.Output) or len(body[0].nodes) != 1:
        return None
    text = source.strip()
    if isinstance(body[0].nodes[0], nodes.TemplateData) or not (
        text.startswith("{{") and text.endswith("}}")
    ):
        return None
    return (
        text[2:-2].strip().strip("-+").strip()
        if text[2:3] in "-+" or text[-3] in "-+"
        else text[2:-2]
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Undefined):
        str(value)  # a strict undefined raises what it has to say
    if isinstance(value, dict):
        return {_plain(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | range):
        return [_plain(inner) for inner in value]
    if not isinstance(value, _PLAIN):
        raise RenderError(f"this template is not a plain value but a {type(value).__name__}")
    return value


def _weight(value: Any, limit: int) -> int:
    """How large a value is: its characters, and ten for each value in it. Stops counting beyond the limit."""
    total, waiting = 0, [value]
    while waiting and total <= limit:
        value = waiting.pop()
        total += 10 + (len(value) if isinstance(value, str) else 0)
        if isinstance(value, dict):
            waiting += [*value, *value.values()]
        elif isinstance(value, list | tuple | range):
            total += 10 * len(value) if len(value) > limit else 0
            waiting += value if len(value) <= limit else ()
    return total


def _product(left: Any, right: Any) -> int:
    """What `left * right` would weigh; numbers weigh nothing."""
    if isinstance(left, int | float):
        left, right = right, left
    if isinstance(left, int | float) or not isinstance(right, int):
        return 0
    return _weight(left, MAX_RESULT) * max(right, 0)


def _replaced(text: str, old: str, new: str, count: int = -1) -> str:
    text, old, new = str(text), str(old), str(new)
    if text.count(old) * len(new) > MAX_RESULT:
        raise RenderError("this template becomes too large")
    return text.replace(old, new, count)


def _of_var(name: str, message: str) -> str:
    """The first var that is wrong is named, not the whole chain that leads to it."""
    return message if message.startswith(("var `", "the vars ")) else f"var `{name}`: {message}"


def _require_name(function: str, name: object) -> None:
    if not isinstance(name, str):
        raise RenderError(f"{function}() takes a name in quotes: {function}('x')")


def _bare_name_hint(error: UndefinedError) -> str | None:
    match = re.match(r"'(\w+)' is undefined", error.message or "")
    return f"write {{{{ var('{match[1]}') }}}} for a value of vars:" if match else None
