"""All functions that the local engine knows by name."""

from __future__ import annotations

from strandline.sql.functions import Function
from strandline.sql.functions_lists import LISTS
from strandline.sql.functions_numbers import LOGIC, NUMBERS
from strandline.sql.functions_sums import SUMS, WINDOWS
from strandline.sql.functions_text import TEXT
from strandline.sql.functions_time import TIME

FAMILIES: dict[str, dict[str, Function]] = {
    "Logic": LOGIC,
    "Numbers": NUMBERS,
    "Text": TEXT,
    "Time": TIME,
    "Lists": LISTS,
    "Sums": SUMS,
    "Windows": WINDOWS,
}
FUNCTIONS = {name: known for some in FAMILIES.values() for name, known in some.items()}
