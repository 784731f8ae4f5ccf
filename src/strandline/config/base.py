"""What all models of the project file share: frozen, no unknown keys, every mistake of a map at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError, PydanticKnownError

from strandline.config.positions import Mistake
from strandline.config.queries import SqlError

SALVAGE = "salvage"
"""As the context of a validation: read what can be read of a map whose mistakes are told already."""

Text = Annotated[str, StringConstraints(min_length=1)]


def _no_flag(value: object) -> object:
    """Pydantic would take `true` for 1."""
    if isinstance(value, bool):
        raise PydanticKnownError("float_type")
    return value


NO_FLAG = BeforeValidator(_no_flag)
Number = Annotated[float, Field(ge=0), NO_FLAG]
Whole = Annotated[int, Field(ge=0), NO_FLAG]
Count = Annotated[int, Field(ge=1), NO_FLAG]


def engine_name(name: object) -> object:
    """The name of an engine as strandline knows it; `pandas` is another word for the local engine."""
    return "local" if name == "pandas" else name


EngineName = Annotated[Literal["spark", "local"], BeforeValidator(engine_name)]


def sql_text(check: Callable[[str], object]) -> AfterValidator:
    """A text that must pass a check of `queries`."""

    def checked(text: str) -> str:
        try:
            check(text)
        except SqlError as mistake:
            raise refusal(Mistake((), mistake.message, mistake.hint)) from mistake
        return text

    return AfterValidator(checked)


def refusal(mistake: Mistake) -> PydanticCustomError:
    """A mistake as Pydantic carries it."""
    # The text goes through ctx, because a template would take braces in it for its own.
    return PydanticCustomError(
        "strandline", "{message}", {"message": mistake.message, "hint": mistake.hint}
    )


def repeated(names: list[str]) -> list[tuple[int, str]]:
    """The names, with their places, that stood in the list before; names compare case-insensitively."""
    seen: Counter[str] = Counter()
    again = []
    for index, name in enumerate(names):
        if seen[name.casefold()]:
            again.append((index, name))
        seen[name.casefold()] += 1
    return again


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    def mistakes(self) -> Iterator[Mistake]:
        """What is wrong between the keys of this map, each at the key to change."""
        return iter(())

    @model_validator(mode="after")
    def _all_mistakes(self, info: ValidationInfo) -> Self:
        if info.context == SALVAGE:
            return self
        if found := list(self.mistakes()):
            raise ValidationError.from_exception_data(
                type(self).__name__,
                [InitErrorDetails(type=refusal(m), loc=m.loc, input=None) for m in found],
            )
        return self
