"""`distance(lat1, lon1, lat2, lon2)` of the channel language, and the grid that finds near pairs without trying all.

The distance is in metres on a sphere (haversine). It takes degrees, latitudes in [-90, 90] and longitudes in [-360,
360], and is NULL for anything else, so that a bad position matches nothing rather than everything.

The grid has rows of equal height h (degrees of latitude), and each row has its own number of columns, so that cells are
about square at every latitude. The centre's side takes every cell that the circle's bounding box touches (3 x 3 when
the radius is h), the other side the one cell it is in: a pair within the radius meets in exactly one cell. Columns wrap
around at the date line; a circle that contains a pole takes all columns of its rows.

The formulas are SQL templates (`filled`), because they read better as text than as a tree.
"""

from __future__ import annotations

from functools import lru_cache

from sqlglot import exp, parse_one

from nearcast.pipeline.channels.language import DIALECT


def filled(template: str, **parts: exp.Expr) -> exp.Expr:
    """The parsed SQL of `template` with a part in place of each `:name`; names without a part stay."""

    def put_in(node: exp.Expr) -> exp.Expr:
        part = parts.get(node.name) if isinstance(node, exp.Placeholder) else None
        return node if part is None else part.copy()

    return _parsed(template).transform(put_in)


@lru_cache(maxsize=256)
def _parsed(template: str) -> exp.Expr:
    return parse_one(template, dialect=DIALECT)


EARTH_RADIUS_M = 6_371_008.8  # mean radius of WGS 84 (IUGG)
HALF_WAY_ROUND_M = 20_015_115.0  # no two points of the sphere are farther apart
SLACK_M = 1.0  # near the antipodes asin loses half its digits, about 0.1 m; the exact check follows anyway
MIN_CELL_DEGREES = 0.001  # about 111 m: 180,000 rows at most
MAX_CELL_DEGREES = 45.0

_DISTANCE = f"""
CASE WHEN ABS(:lat1) <= 90 AND ABS(:lat2) <= 90 AND ABS(:lon1) <= 360 AND ABS(:lon2) <= 360 THEN
  {2 * EARTH_RADIUS_M} * ASIN(SQRT(LEAST(1D,
    POWER(SIN(RADIANS((:lat2) - (:lat1)) / 2), 2)
    + COS(RADIANS(:lat1)) * COS(RADIANS(:lat2)) * POWER(SIN(RADIANS((:lon2) - (:lon1)) / 2), 2))))
END
"""
_ROW = "CAST(FLOOR((:lat + 90) / :h) AS BIGINT)"
_COLUMNS = "GREATEST(1, CAST(FLOOR(360 * COS(RADIANS(LEAST(90D, ABS(:row * :h - 90)))) / :h) AS BIGINT))"
_COLUMN = "LEAST(:columns - 1, CAST(FLOOR(PMOD(:lon + 180, 360D) / 360 * :columns) AS BIGINT))"
_METRES = f"LEAST(GREATEST(CAST(:radius AS DOUBLE), 0D), {HALF_WAY_ROUND_M}) + {SLACK_M}"
_REACH = f"DEGREES(({_METRES}) / {EARTH_RADIUS_M})"  # of latitude, degrees
_ROWS = """SEQUENCE(
  CAST(FLOOR(GREATEST(0D, :lat + 90 - :reach) / :h) AS BIGINT),
  CAST(FLOOR(LEAST(180D, :lat + 90 + :reach) / :h) AS BIGINT))"""
# The meridians that touch a circle around :lat: Bronshtein, Handbook of Mathematics, right spherical triangles.
_HALF_WIDTH = """CASE WHEN ABS(:lat) + :reach >= 90 THEN 180D
  ELSE LEAST(180D, 1e-9 + DEGREES(ASIN(LEAST(1D, SIN(RADIANS(:reach)) / COS(RADIANS(:lat)))))) END"""
_FIRST = "CAST(FLOOR((PMOD(:lon + 180, 360D) - :half_width) / 360 * :columns) AS BIGINT)"
_LAST = "CAST(FLOOR((PMOD(:lon + 180, 360D) + :half_width) / 360 * :columns) AS BIGINT)"
# Never the same column twice, or a pair would meet twice.
_ALL_COLUMNS = f"SEQUENCE({_FIRST}, LEAST({_LAST}, {_FIRST} + :columns - 1))"
_VALID = "ABS(:lat) <= 90 AND ABS(:lon) <= 360"


def is_distance(node: exp.Expr) -> bool:
    return isinstance(node, exp.Anonymous) and node.name.lower() == "distance"


def expand_distance(call: exp.Expr) -> exp.Expr:
    """The formula in place of `distance(...)`."""
    lat1, lon1, lat2, lon2 = (_as_double(argument) for argument in call.expressions)
    return exp.paren(filled(_DISTANCE, lat1=lat1, lon1=lon1, lat2=lat2, lon2=lon2))


def cell_degrees(mean_square_radius_m2: exp.Expr) -> exp.Expr:
    """The height of a cell: the quadratic mean of the radii.

    A centre of radius r takes about (1 + 2 r / h)^2 cells. With this h all N centres together take at most 9 N, as if
    each took 3 x 3, even if a few radii are far larger than the others.
    """
    metres = f"DEGREES(SQRT(COALESCE(:square, 0D)) / {EARTH_RADIUS_M})"
    return filled(f"GREATEST({MIN_CELL_DEGREES}D, LEAST({MAX_CELL_DEGREES}D, {metres}))", square=mean_square_radius_m2)


def bounded_radius_m(radius: exp.Expr) -> exp.Expr:
    return filled(_METRES, radius=radius)


def row_of(lat: exp.Expr, lon: exp.Expr, h: exp.Expr) -> exp.Expr:
    """The row of the cell that a position is in; NULL for an invalid position."""
    lat, lon = _as_double(lat), _as_double(lon)
    return _if_valid(filled(_ROW, lat=lat, h=h), lat, lon)


def columns_of(row: exp.Expr, h: exp.Expr) -> exp.Expr:
    """How many columns a row has."""
    return filled(_COLUMNS, row=row, h=h)


def column_of(lat: exp.Expr, lon: exp.Expr, columns: exp.Expr) -> exp.Expr:
    lat, lon = _as_double(lat), _as_double(lon)
    return _if_valid(filled(_COLUMN, lon=lon, columns=columns), lat, lon)


def reach_degrees(radius: exp.Expr) -> exp.Expr:
    """How far a circle reaches north and south."""
    return filled(_REACH, radius=radius)


def half_width_degrees(lat: exp.Expr, reach: exp.Expr) -> exp.Expr:
    """How far it reaches east and west."""
    return filled(_HALF_WIDTH, lat=_as_double(lat), reach=reach)


def rows_touched(lat: exp.Expr, lon: exp.Expr, radius: exp.Expr, reach: exp.Expr, h: exp.Expr) -> exp.Expr:
    """The array of rows that a circle touches; NULL for an invalid circle."""
    lat, lon = _as_double(lat), _as_double(lon)
    return _if_valid(filled(_ROWS, lat=lat, reach=reach, h=h), lat, lon, radius)


def columns_touched(lon: exp.Expr, half_width: exp.Expr, columns: exp.Expr) -> exp.Expr:
    """The array of columns of a row that a circle touches, before they wrap around."""
    return filled(_ALL_COLUMNS, lon=_as_double(lon), half_width=half_width, columns=columns)


def _if_valid(value: exp.Expr, lat: exp.Expr, lon: exp.Expr, radius: exp.Expr | None = None) -> exp.Expr:
    # GREATEST and LEAST skip NULL: a NULL radius would become 0 without the last condition.
    condition = filled(_VALID, lat=lat, lon=lon)
    if radius is not None:
        condition = exp.and_(condition, exp.Not(this=exp.Is(this=radius.copy(), expression=exp.Null())))
    return exp.Case().when(condition, value)


def _as_double(value: exp.Expr) -> exp.Expr:
    if value.is_type("double"):
        return value.copy()
    return exp.TryCast(this=value.copy(), to=exp.DataType.build("double"), safe=True)
