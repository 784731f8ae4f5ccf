"""Java's regular expressions in Python's words: the same matches, or a refusal that names what has no equal."""

from __future__ import annotations

import re

from strandline.sql.functions import Unsuited

FLAGS = re.ASCII  # in Java \d, \w, \s and (?i) know ASCII only
_LINE_END = r"(?=(?:\r\n|(?<!\r)\n|[\r\x85\u2028\u2029])?\Z)"
_DOT = r"[^\n\r\x85\u2028\u2029]"
_CLASSES = frozenset("dDwWsS")
_SIGNS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}
_POSIX = {
    "Lower": "a-z", "Upper": "A-Z", "Alpha": "a-zA-Z", "Digit": "0-9", "Alnum": "a-zA-Z0-9", "XDigit": "0-9a-fA-F",
    "Punct": r"!-/:-@\[-`{-~", "Space": r"\s", "Blank": r"\ \t", "ASCII": r"\x00-\x7f",
}  # fmt: skip
_GROUPS = {"(?:": "(?:", "(?=": "(?=", "(?!": "(?!", "(?<=": "(?<=", "(?<!": "(?<!"}


def python_pattern(java: str) -> str:
    """The pattern for Python's `re`, to be compiled with `FLAGS`."""
    made = _Reader(java).read()
    try:
        re.compile(made, FLAGS)
    except (re.error, OverflowError) as error:
        raise Unsuited(f"its pattern `{java}` cannot be read: {error}") from error
    return made


def groups_of(pattern: str) -> int:
    return re.compile(pattern, FLAGS).groups


def many_matches(java: str) -> str:
    """The same, for functions that look for every match.

    Java looks for empty matches inside of signs that it keeps in two halves, such as 😀: such patterns are refused.
    """
    made = python_pattern(java)
    if any(found.start() in (1, 2) and not found[0] for found in re.finditer(made, "☃☃☃", FLAGS)):
        raise Unsuited(
            f"its pattern `{java}` matches everywhere, even where there is no text", "write + for *"
        )
    return made


def plain_everywhere(java: str) -> bool:
    """Does every engine read the pattern alike? Letters, digits, and simple classes of them."""
    return (
        re.fullmatch(
            r"\^?([A-Za-z0-9 _,;:@/#=<>'-]|\[[A-Za-z0-9_-]*[A-Za-z0-9_]\][*+?]?|[|])*", java
        )
        is not None
    )


def python_replacement(java: str, pattern: str) -> str:
    """A replacement with Java's `$1`, `${name}` and backslashes, as a template of Python."""
    compiled, made, at = re.compile(pattern, FLAGS), "", 0
    while at < len(java):
        sign = java[at]
        if sign == "\\":
            if at + 1 == len(java):
                raise Unsuited("its replacement ends in a backslash")
            made, at = made + _template(java[at + 1]), at + 2
        elif sign == "$":
            found = re.match(r"\$(?:(\d+)|\{(\w+)\})", java[at:], re.ASCII)
            if not found:
                raise Unsuited(
                    "its replacement has a `$` without the number of a group",
                    "write \\\\$ for the sign",
                )
            group, length = _group(found, compiled)
            made, at = f"{made}\\g<{group}>", at + length
        else:
            made, at = made + _template(sign), at + 1
    return made


def _template(sign: str) -> str:
    return "\\\\" if sign == "\\" else sign


def _group(found: re.Match[str], pattern: re.Pattern[str]) -> tuple[str, int]:
    """The group that is meant, and how many signs name it: as many digits as there is a group for."""
    if found[2]:
        if found[2] not in pattern.groupindex:
            raise Unsuited(f"its pattern has no group `{found[2]}`")
        return found[2], len(found[0])
    number = found[1]
    while len(number) > 1 and int(number) > pattern.groups:
        number = number[:-1]
    if int(number) > pattern.groups:
        raise Unsuited(f"its pattern has no group {number}")
    return number, 1 + len(number)


class _Reader:
    """Reads a pattern from left to right, and writes it for Python."""

    def __init__(self, java: str) -> None:
        self.java, self.at, self.out = java, 0, ""
        self.dot, self.atom = _DOT, False

    def refuse(self, what: str) -> Unsuited:
        return Unsuited(f"{what} in the pattern `{self.java}` has no equal here")

    def read(self) -> str:
        self._flags()
        while self.at < len(self.java):
            self._next()
        return self.out

    def _flags(self) -> None:
        found = re.match(r"\(\?([a-zA-Z]+)\)", self.java)
        if not found:
            return
        for flag in found[1]:
            if flag not in "is":
                raise self.refuse(f"the flag (?{flag})")
        self.at = found.end()
        self.out = "(?i)" if "i" in found[1] else ""
        self.dot = r"[\s\S]" if "s" in found[1] else _DOT

    def _next(self) -> None:
        sign = self.java[self.at]
        match sign:
            case "\\":
                self._put(self._escape(inside=False))
            case "[":
                self._put(self._class())
            case "(":
                self._open()
            case ".":
                self._put(self.dot, 1)
            case "$":
                self._put(_LINE_END, 1, atom=False)
            case "^" | "|":
                self._put(sign, 1, atom=False)
            case ")":
                self._put(sign, 1)
            case "*" | "+" | "?" | "{":
                self._repeat()
            case _:
                self._put(re.escape(sign), 1)

    def _put(self, text: str, step: int = 0, *, atom: bool = True) -> None:
        self.out, self.at, self.atom = self.out + text, self.at + step, atom

    def _open(self) -> None:
        rest = self.java[self.at :]
        if not rest.startswith("(?"):
            return self._put("(", 1, atom=False)
        for java, python in _GROUPS.items():
            if rest.startswith(java):
                return self._put(python, len(java), atom=False)
        if name := re.match(r"\(\?<([a-zA-Z][a-zA-Z0-9]*)>", rest):
            return self._put(f"(?P<{name[1]}>", name.end(), atom=False)
        raise self.refuse(f"`{rest[:3]}`")

    def _repeat(self) -> None:
        found = re.match(r"(?:[*+?]|\{\d+(?:,\d*)?\})([+?]?)", self.java[self.at :], re.ASCII)
        if not found or not self.atom or found[1] == "+":
            raise self.refuse(f"`{self.java[self.at :][:3]}`")
        self._put(found[0], found.end(), atom=False)

    def _escape(self, *, inside: bool) -> str:
        """What a backslash says; moves behind it."""
        rest = self.java[self.at + 1 :]
        if not rest:
            raise self.refuse("a backslash at the end")
        sign = rest[0]
        if not sign.isalnum():
            self.at += 2
            return re.escape(sign)
        if sign in _CLASSES:
            self.at += 2
            return f"\\{sign}"
        if sign in _SIGNS:
            self.at += 2
            return re.escape(_SIGNS[sign])
        if code := re.match(r"(?:x([0-9a-fA-F]{2})|x\{([0-9a-fA-F]+)\}|u([0-9a-fA-F]{4}))", rest):
            self.at += 1 + code.end()
            return re.escape(chr(int(code[1] or code[2] or code[3], 16)))
        if posix := re.match(r"p\{(\w+)\}", rest):
            return self._posix(posix, inside=inside)
        return self._anchor(sign, inside=inside)

    def _posix(self, found: re.Match[str], *, inside: bool) -> str:
        if found[1] not in _POSIX:
            raise self.refuse(f"`\\{found[0]}`")
        self.at += 1 + found.end()
        return _POSIX[found[1]] if inside else f"[{_POSIX[found[1]]}]"

    def _anchor(self, sign: str, *, inside: bool) -> str:
        ends = {"A": r"\A", "z": r"\Z", "Z": _LINE_END}
        if not inside and sign in ends:
            self.at += 2
            return ends[sign]
        if (
            not inside
            and sign in "123456789"
            and not self.java[self.at + 2 : self.at + 3].isdigit()
        ):
            self.at += 2
            return f"(?:\\{sign})"
        raise self.refuse(f"`\\{sign}`")

    def _class(self) -> str:
        """A class in brackets, without classes inside of it."""
        self.at += 1
        made = "["
        if self.java[self.at : self.at + 1] == "^":
            made, self.at = "[^", self.at + 1
        first = True
        while self.java[self.at : self.at + 1] != "]" or first:
            rest = self.java[self.at :]
            if not rest or rest[0] in "[]" or rest.startswith("&&"):
                raise self.refuse(f"`{rest[:2]}` inside of brackets")
            if rest[0] == "\\":
                made += self._escape(inside=True)
            else:
                made += (
                    "-"
                    if rest[0] == "-" and not first and rest[1:2] not in ("]", "-")
                    else re.escape(rest[0])
                )
                self.at += 1
            first = False
        self.at += 1
        return made + "]"
