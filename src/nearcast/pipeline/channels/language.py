"""The language of channels: a header of our own, then one SELECT of ordinary Spark SQL.

    CREATE [OR REPLACE] CHANNEL near_me(kind STRING, lat DOUBLE, lon DOUBLE) PERIOD 10 SECONDS [CONTINUOUS] AS
    SELECT r.id, r.message, s.name AS shelter
    FROM NEW emergency_reports AS r JOIN shelters AS s ON r.district = s.district
    WHERE r.kind = :kind AND distance(r.lat, r.lon, :lat, :lon) < 2000

`NEW` before a dataset's name, after FROM, JOIN or a comma, means that only its records since the last execution are
read; the others are read whole. A continuous channel runs at each micro-batch, and the period is then the minimum time
between two executions. `distance(lat1, lon1, lat2, lon2)` is in metres (see `geography.py`). The parameter `user` is
the login of a subscriber.

The header is parsed by hand from sqlglot's tokens. Then it and each NEW are replaced by blanks of the same length, so
that every position in the SELECT is also its position in the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from sqlglot import exp, parse_one, tokenize
from sqlglot.errors import ParseError, SqlglotError
from sqlglot.tokens import Token, TokenType

from nearcast.errors import UsageError

# --- refusals


class InvalidChannel(UsageError):
    """Why a channel's text is refused: where, what is wrong, and what to write instead."""

    def __init__(self, line: int, column: int, problem: str, hint: str) -> None:
        self.line = line
        self.column = column
        self.problem = problem
        self.hint = hint
        super().__init__(f"line {line}, column {column}: {problem}; {hint}")


def invalid_at(text: str, offset: int, problem: str, hint: str) -> InvalidChannel:
    """The refusal for the place `offset` characters into the channel's text; lines and columns count from 1."""
    before = text[:offset]
    return InvalidChannel(before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1, problem, hint)


# --- types of columns


DIALECT = "spark"
TYPE_NESTING_MAX = 10  # levels of arrays, maps and structs
DECIMAL_DIGITS_MAX = 38  # Spark's own

_DECIMAL_HINT = f"give at most {DECIMAL_DIGITS_MAX} digits, and no more after the point, as in DECIMAL(10, 2)"
_FIELD_NAME = re.compile(r"[A-Za-z0-9_]{1,64}")
_SCALARS = {
    *(exp.DType.TEXT, exp.DType.BOOLEAN, exp.DType.BINARY),
    *(exp.DType.TINYINT, exp.DType.SMALLINT, exp.DType.INT, exp.DType.BIGINT),
    *(exp.DType.FLOAT, exp.DType.DOUBLE, exp.DType.DECIMAL),
    *(exp.DType.DATE, exp.DType.TIMESTAMP, exp.DType.TIMESTAMPTZ, exp.DType.TIMESTAMPNTZ),
}
_NESTED = {exp.DType.ARRAY: 1, exp.DType.MAP: 2, exp.DType.STRUCT: None}  # how many types each has inside


def checked_type(column: str, kind: exp.DataType) -> str:
    """A type that Spark reads from messages and Parquet stores, as Spark writes it; raises UsageError for others."""
    for part in kind.find_all(exp.DataType):
        if part.this not in _SCALARS and part.this not in _NESTED:
            raise UsageError(f"the column {column} is of type {kind.sql(DIALECT)}: use a Spark type such as STRING")
        if part.this is exp.DType.DECIMAL:
            _check_decimal(column, part)
        elif part.this in _NESTED:
            _check_nested(column, part)
    return str(kind.sql(DIALECT))


def _check_decimal(column: str, kind: exp.DataType) -> None:
    sizes = [int(size.name) for size in kind.expressions if size.name.isdigit()]
    digits, scale = [*sizes, 0][:2] if sizes else (10, 0)
    if len(sizes) != len(kind.expressions) or not 1 <= digits <= DECIMAL_DIGITS_MAX or scale > digits:
        raise UsageError(f"the column {column} is of type {kind.sql(DIALECT)}: {_DECIMAL_HINT}")


def _check_nested(column: str, kind: exp.DataType) -> None:
    parts, inside = kind.expressions, _NESTED[kind.this]
    if not parts or (inside and len(parts) != inside):
        raise UsageError(
            f"the column {column} does not say what {kind.sql(DIALECT)} contains: write ARRAY<INT> or STRUCT<a: INT>"
        )
    if kind.this is exp.DType.MAP and parts[0].this in _NESTED:
        raise UsageError(f"the column {column} has a map with keys of type {parts[0].sql(DIALECT)}: use a plain type")
    if kind.this is exp.DType.STRUCT:
        _check_fields(column, [part.name for part in parts])
    depth = sum(isinstance(part, exp.DataType) for part in _ancestors(kind))
    if depth > TYPE_NESTING_MAX:
        raise UsageError(f"column {column} is nested more than {TYPE_NESTING_MAX} deep: store inner parts as STRING")


def _check_fields(column: str, names: list[str]) -> None:
    for name in names:
        if not _FIELD_NAME.fullmatch(name):
            raise UsageError(f"bad field name {name!r} in column {column}: use at most 64 letters, digits and _")
        if [other.lower() for other in names].count(name.lower()) > 1:
            raise UsageError(f"the column {column} names {name} twice (case is ignored): rename one")


def _ancestors(node: exp.Expr) -> list[exp.Expr]:
    found = [node]
    while found[-1].parent is not None:
        found.append(found[-1].parent)
    return found


# --- channels


NEW_SUFFIX = "__new"  # the relation of a dataset's new records is its name with this at the end
USER = "user"  # the parameter that holds the login name
HEADER = "CREATE [OR REPLACE] CHANNEL name(parameter TYPE, ...) PERIOD n SECONDS [CONTINUOUS] AS SELECT ..."

PERIOD_LEAST_S = 0.5  # a batch of a feed takes about this long, and each execution costs Spark time
PERIOD_MOST_S = 31 * 86400.0
TOKENS_MAX = 5000  # of a text
NESTING_MAX = 50  # levels of brackets and CASEs: each costs every parser involved a few stack frames
DEPTH_MAX = 100  # of the tree of a SELECT
LINKS_MAX = 200  # ANDs and ORs: Spark's parser nests them
PARAMETERS_MAX = 100

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")  # a channel's name is also the name of a folder
_WHOLE_NUMBERS = ("TINYINT", "SMALLINT", "INT", "INTEGER", "BIGINT", "LONG")
_TYPES = ("STRING", "BOOLEAN", *_WHOLE_NUMBERS, "FLOAT", "DOUBLE", "DECIMAL", "DATE", "TIMESTAMP")
_OPENING = frozenset({"(", "[", "CASE"})
_CLOSING = frozenset({")", "]", "END"})
_LINKS = frozenset({"AND", "OR"})
_BEFORE_A_DATASET = (TokenType.FROM, TokenType.JOIN, TokenType.COMMA)


@dataclass(frozen=True)
class Channel:
    """A parsed channel. Names are in lower case, because Spark SQL ignores case."""

    name: str
    parameters: Mapping[str, str]  # name -> Spark type
    period_s: float
    continuous: bool
    new_datasets: tuple[str, ...]
    whole_datasets: tuple[str, ...]
    select: exp.Select
    text: str
    replaces: bool = False  # a channel of the same name, whose subscriptions continue

    def refuse(self, node: exp.Expr | None, problem: str, hint: str) -> InvalidChannel:
        """A refusal that points at a part of the SELECT, or at the SELECT itself."""
        return invalid_at(self.text, _offset(node) if node else _offset(self.select), problem, hint)


def parse_channel(text: str) -> Channel:
    """The channel that `text` creates; raises `InvalidChannel`."""
    header = _Header(text)
    name, parameters, period_s, continuous = header.read()
    body_from = header.here
    blanked, new_at = _without_new(text, header.tokens[body_from:])
    select = _parse_select(text, blanked)
    _mark_placeholders(text, select, header.tokens[body_from:])
    new, whole = _mark_datasets(text, select, new_at)
    if not new:
        raise invalid_at(text, _offset(select), "no dataset is read as NEW", "write NEW before the name of one")
    channel = Channel(name, parameters, period_s, continuous, new, whole, select, text, header.replaces)
    _check_parameters(channel, header.parameter_at)
    return channel


class _Header:
    """Reads the tokens up to AS, one expectation after another."""

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            self.tokens = tokenize(text, dialect=DIALECT)
        except SqlglotError as error:
            raise invalid_at(text, 0, f"the text cannot be read: {error}", "close all quotes and comments") from None
        _check_size(text, self.tokens)
        _check_quotes(text, self.tokens)
        self.here = 0
        self.replaces = False
        self.parameter_at: dict[str, int] = {}

    def read(self) -> tuple[str, dict[str, str], float, bool]:
        self._word("CREATE")
        if self._peek() == "OR":
            self.here += 1
            self._word("REPLACE")
            self.replaces = True
        self._word("CHANNEL")
        name = self._name("the channel's name")
        self._word("(")
        parameters = self._parameters()
        self._word("PERIOD")
        period_s = self._period()
        self._word("SECONDS", "SECOND")
        continuous = self._peek() == "CONTINUOUS"
        self.here += continuous
        self._word("AS")
        return name, parameters, period_s, continuous

    def _parameters(self) -> dict[str, str]:
        found: dict[str, str] = {}
        while self._peek() != ")":
            if found:
                self._word(",")
            at = self._offset()
            name = self._name("a parameter's name")
            if name in found:
                raise invalid_at(self.text, at, f"parameter {name} is declared twice", "give it another name")
            if len(found) == PARAMETERS_MAX:
                raise invalid_at(self.text, at, "too many parameters", f"declare at most {PARAMETERS_MAX}")
            found[name] = self._type()
            if name == USER and found[name] != "STRING":
                hint = "declare it as STRING, because it is the name that a subscriber logs in with"
                raise invalid_at(self.text, at, f"parameter {USER} is {found[name]}", hint)
            self.parameter_at[name] = at
        self._word(")")
        return found

    def _type(self) -> str:
        at, name = self._offset(), self._peek()
        if name not in _TYPES:
            raise invalid_at(self.text, at, f"unknown parameter type {name or 'end'}", f"use {', '.join(_TYPES)}")
        self.here += 1
        size = ""
        if name == "DECIMAL" and self._peek() == "(":
            while not size.endswith(")") and self._peek():
                size += self._peek()
                self.here += 1
        try:
            return checked_type(name, exp.DataType.build(name + size, dialect=DIALECT))
        except (SqlglotError, UsageError):
            raise invalid_at(self.text, at, f"invalid parameter type {name}{size}", _DECIMAL_HINT) from None

    def _period(self) -> float:
        at, text = self._offset(), self._peek()
        self.here += 1
        if not re.fullmatch(r"\d{1,12}(\.\d{1,12})?", text) or not PERIOD_LEAST_S <= float(text) <= PERIOD_MOST_S:
            hint = f"write a number of seconds from {PERIOD_LEAST_S:g} to {PERIOD_MOST_S:.0f}"
            raise invalid_at(self.text, at, f"invalid period {text[:20]}" if text else "the period is missing", hint)
        return float(text)

    def _name(self, what: str) -> str:
        at, token = self._offset(), self._token()
        if token is None or not _NAME.fullmatch(token.text):
            hint = f"use at most 64 letters, digits and _, starting with a letter; the form is {HEADER}"
            raise invalid_at(self.text, at, f"{what} is missing", hint)
        self.here += 1
        return token.text.lower()

    def _word(self, *wanted: str) -> None:
        if self._peek() not in wanted:
            found = self._token()
            problem = f"expected {wanted[0]}, found {found.text if found else 'the end'}"
            raise invalid_at(self.text, self._offset(), problem, f"the form is {HEADER}")
        self.here += 1

    def _token(self) -> Token | None:
        return self.tokens[self.here] if self.here < len(self.tokens) else None

    def _peek(self) -> str:
        token = self._token()
        return token.text.upper() if token else ""

    def _offset(self) -> int:
        token = self._token()
        return token.start if token else len(self.text)


def _check_size(text: str, tokens: list[Token]) -> None:
    """Refuse what would exhaust a parser, ours or Spark's."""
    depth = links = 0
    for number, token in enumerate(tokens):
        word = token.text.upper()
        depth += (word in _OPENING) - (word in _CLOSING)
        links += word in _LINKS
        if depth > NESTING_MAX:
            raise invalid_at(text, token.start, "nested too deeply", f"use at most {NESTING_MAX} levels of brackets")
        if links > LINKS_MAX:
            raise invalid_at(text, token.start, "too many conditions", f"use at most {LINKS_MAX} ANDs and ORs")
        if number >= TOKENS_MAX:
            raise invalid_at(text, token.start, "the text is too long", f"use at most {TOKENS_MAX} words and symbols")


def _check_quotes(text: str, tokens: list[Token]) -> None:
    """Spark reads 'it''s' as one string with a quote in it, sqlglot as two strings that are joined."""
    for one, other in pairwise(tokens):
        if one.token_type is other.token_type is TokenType.STRING and one.end + 1 == other.start:
            raise invalid_at(text, one.start, "a doubled quote in a string", r"write a quote in a string as \'")


def _without_new(text: str, body: list[Token]) -> tuple[str, frozenset[int]]:
    """The text with header and NEW words blanked, and the offsets of the dataset names that followed NEW."""
    blanked = _blank(text, 0, body[0].start if body else len(text))
    new_at = set()
    for before, word, name in zip(body, body[1:], body[2:], strict=False):
        named = name.token_type in (TokenType.VAR, TokenType.IDENTIFIER)
        if before.token_type in _BEFORE_A_DATASET and word.text.upper() == "NEW" and named:
            blanked = _blank(blanked, word.start, word.end + 1)
            new_at.add(name.start)
    return blanked, frozenset(new_at)


def _blank(text: str, start: int, end: int) -> str:
    return text[:start] + re.sub(r"[^\n]", " ", text[start:end]) + text[end:]


def _parse_select(text: str, blanked: str) -> exp.Select:
    try:
        parsed = parse_one(blanked, dialect=DIALECT)
    except RecursionError:
        raise invalid_at(text, 0, "nested too deeply", "simplify it") from None
    except ParseError as error:
        if not error.errors:
            raise invalid_at(text, len(text), "the SELECT is missing", "write Spark SQL after AS") from None
        first = error.errors[0]  # its column is that of the last character
        offset = _offset_of(text, first["line"], first["col"] - len(first["highlight"]) + 1)
        raise invalid_at(text, offset, f"invalid SQL: {first['description']}", "write Spark SQL after AS") from None
    if not isinstance(parsed, exp.Select):
        raise invalid_at(text, _offset(parsed), "not a single SELECT", "write one SELECT, without UNION") from None
    _check_depth(text, parsed)
    return parsed


def _check_depth(text: str, select: exp.Select) -> None:
    """Limit the depth of the tree, which every later step descends: a sum of many terms is deep without brackets."""
    below: list[tuple[exp.Expr, int]] = [(select, 0)]
    while below:
        node, depth = below.pop()
        if depth > DEPTH_MAX:
            raise invalid_at(text, _offset(node), "nested too deeply", f"use at most {DEPTH_MAX} levels of operators")
        linked = isinstance(node, exp.Connector)  # limited by LINKS_MAX instead: they are walked without recursion
        below += [(child, depth + (not linked or type(child) is not type(node))) for child in node.iter_expressions()]


def _offset_of(text: str, line: int, column: int) -> int:
    starts = [0, *(match.end() for match in re.finditer("\n", text))]
    return min(len(text), starts[line - 1] + max(0, column - 1))


def _offset(node: exp.Expr) -> int:
    """Where the node begins in the text: the first position that sqlglot or this module noted in it."""
    starts = [part.meta["start"] for part in node.walk() if "start" in part.meta]
    return min(starts, default=0)


def _mark_placeholders(text: str, select: exp.Select, body: list[Token]) -> None:
    """Note the position of each `:name`, because sqlglot keeps none. If a name repeats, its first place is used."""
    first: dict[str, int] = {}
    for colon, name in pairwise(body):
        if colon.token_type is TokenType.COLON:
            first.setdefault(name.text.lower(), colon.start)
    for place in select.find_all(exp.Placeholder):
        if not place.this:
            raise invalid_at(text, _offset(select), "a ? instead of a parameter", "name the parameter, as in :kind")
        place.set("this", place.name.lower())
        place.meta["start"] = first.get(place.name, 0)


def _mark_datasets(text: str, select: exp.Select, new_at: frozenset[int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Rename the relations of new records, keeping their aliases; returns the names of both kinds of datasets."""
    _check_names(text, select)
    new, whole = set(), set()
    defined = {cte.alias.lower() for cte in select.find_all(exp.CTE)}
    for table in select.find_all(exp.Table):
        if table.db or not isinstance(table.this, exp.Identifier):
            raise invalid_at(text, _offset(table), f"{table.sql(DIALECT)} is not a dataset", "use the bare name")
        name = table.name.lower()
        if table.this.meta.get("start") in new_at:
            if not table.alias:
                table.set("alias", exp.TableAlias(this=exp.to_identifier(name)))
            table.this.set("this", name + NEW_SUFFIX)
            new.add(name)
        elif name not in defined:
            whole.add(name)
    return tuple(sorted(new)), tuple(sorted(whole))


def _check_names(text: str, select: exp.Select) -> None:
    """A query that used our internal relation names could read the new records or all subscriptions."""
    for node in select.find_all(exp.CTE, exp.Table, exp.Subquery, exp.Lateral):
        for name in (node.name if isinstance(node, exp.Table) else "", node.alias):
            if name.startswith("_") or name.lower().endswith(NEW_SUFFIX):
                hint = f"choose a name that does not begin with _ or end with {NEW_SUFFIX}"
                raise invalid_at(text, _offset(node), f"the name {name} is reserved", hint)


def _check_parameters(channel: Channel, declared_at: Mapping[str, int]) -> None:
    used = {place.name: place for place in channel.select.find_all(exp.Placeholder)}
    for name, place in used.items():
        if name not in channel.parameters:
            raise channel.refuse(place, f"parameter :{name} is not declared", f"add it to {channel.name}(...)")
    for name in channel.parameters:
        if name not in used:
            problem = f"parameter {name} is never used"
            raise invalid_at(channel.text, declared_at[name], problem, f"use :{name} in the SELECT or leave it out")
