"""Types that hold other types: their parts, in Spark's words."""

from __future__ import annotations

NESTED = ("array", "map", "struct")


def outer(type_: str) -> str:
    """What kind of type it is, without its parts or digits: `array<int>` is an array."""
    return type_.split("<", 1)[0].split("(", 1)[0].strip().lower()


def parts(type_: str) -> list[tuple[str, str]]:
    """The parts of an array, a map or a struct, each with its name; none of any other type."""
    kind = outer(type_)
    if kind not in NESTED or not type_.endswith(">"):
        return []
    inner = _split(type_[type_.index("<") + 1 : -1])
    if kind == "struct":
        named = [part.partition(":") for part in inner]
        return [(name.strip().strip("`"), rest.strip()) for name, _, rest in named]
    names = ("element",) if kind == "array" else ("key", "value")
    return list(zip(names, inner, strict=False))


def _split(text: str) -> list[str]:
    """A list by its commas; those inside of brackets belong to a part."""
    found, depth, start = [], 0, 0
    for at, sign in enumerate(text):
        depth += sign in "<("
        depth -= sign in ">)"
        if sign == "," and not depth:
            found.append(text[start:at].strip())
            start = at + 1
    last = text[start:].strip()
    return [*found, last] if last else found
