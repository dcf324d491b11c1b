"""The types that a channel may select, because each has a JSON form (`service/json_forms.py`)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

NESTING_MAX = 20

_PLAIN = {
    *("string", "char", "varchar", "boolean", "binary", "date", "timestamp", "timestamp_ntz"),
    *("byte", "short", "integer", "long", "float", "double", "decimal"),
}


def undeliverable(kind: DataType, depth: int = 0) -> str:
    """Why results cannot have this type, as in "of type VARIANT"; empty if they can."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if depth > NESTING_MAX:
        return f"nested more than {NESTING_MAX} deep"
    if isinstance(kind, StructType):
        names = Counter(field.name.lower() for field in kind.fields)
        twice = [name for name, count in names.items() if count > 1]
        if twice:
            return f"a struct with two fields {twice[0]}"
        inner = [field.dataType for field in kind.fields]
    elif isinstance(kind, ArrayType):
        inner = [kind.elementType]
    elif isinstance(kind, MapType):
        if kind.keyType.typeName() != "string":
            return f"a map with keys of type {kind.keyType.simpleString().upper()}"
        inner = [kind.valueType]
    else:
        return "" if kind.typeName() in _PLAIN else f"of type {kind.simpleString().upper()}"
    return next((problem for part in inner if (problem := undeliverable(part, depth + 1))), "")
