"""What a failure of Spark says: in one line, and whether data are the cause.

Spark's errors carry an SQLSTATE. Class 22 is "data exception" in the SQL standard (a division by zero, a text that is
no number), P0001 is an error that the query raised itself (a limit). Neither goes away by trying again. All others,
from a full disk to a lost executor, may.
"""

from __future__ import annotations

from collections.abc import Iterator

_RAISED = "P0001"
_DATA = "22"
_LONGEST = 300


def told(error: BaseException) -> str:
    """The first line of what the data, or else the failure itself, is said to have done."""
    cause = next((cause for cause in _causes(error) if _is_of_data(cause)), error)
    return (str(cause).partition("\n")[0] or type(cause).__name__)[:_LONGEST]


def is_of_data(error: BaseException) -> bool:
    return any(_is_of_data(cause) for cause in _causes(error))


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = getattr(cause, "_cause", None)  # as pyspark keeps what Java names as the cause


def _is_of_data(error: BaseException) -> bool:
    from pyspark.errors import PySparkException

    state = error.getSqlState() if isinstance(error, PySparkException) else None
    return state is not None and (state == _RAISED or state.startswith(_DATA))
