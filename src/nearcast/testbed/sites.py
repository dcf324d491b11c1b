"""Emulated sites: names, and the one-way delays between them.

The figures of `WORLD` are round and illustrative: the order of magnitude of public round-trip tables between
cloud regions, halved. They are not measurements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

from nearcast.errors import UsageError
from nearcast.testbed.links import LinkShape


@dataclass(frozen=True, slots=True)
class Site:
    """A place. `local_delay_s`: one way, from a client there to a broker there."""

    name: str
    local_delay_s: float = 0.004


@dataclass(frozen=True, slots=True)
class World:
    """Sites and the one-way delays between them, the same in both directions.

    `delays_s` names each pair of sites once. The jitter of a link is `jitter_share` of its delay.
    """

    sites: tuple[Site, ...]
    delays_s: Mapping[tuple[str, str], float]
    jitter_share: float = 0.05

    def __post_init__(self) -> None:
        names = sorted(site.name for site in self.sites)
        given = sorted(tuple(sorted(pair)) for pair in self.delays_s)
        if len(set(names)) < len(names) or given != list(combinations(names, 2)):
            raise UsageError(f"name each site once, and each pair of {names} once in delays_s")

    def delay_s(self, source: str, target: str) -> float:
        """One way from a client or broker at `source` to a broker at `target`."""
        local = {site.name: site.local_delay_s for site in self.sites}
        if source not in local or target not in local:
            raise UsageError(f"no delay from {source!r} to {target!r}; the sites are: {', '.join(local)}")
        if source == target:
            return local[source]
        pair = (source, target) if (source, target) in self.delays_s else (target, source)
        return self.delays_s[pair]

    def link(self, source: str, target: str) -> LinkShape:
        """The shape of the link between the two, to start a `DelayedRelay` with."""
        delay_s = self.delay_s(source, target)
        return LinkShape(delay_s=delay_s, jitter_s=delay_s * self.jitter_share)


WORLD = World(
    (Site("paris"), Site("tokyo"), Site("virginia")),
    {("paris", "virginia"): 0.040, ("tokyo", "virginia"): 0.080, ("paris", "tokyo"): 0.120},
)
