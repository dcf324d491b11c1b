"""The policies by name, with thresholds as text: for command lines and settings.

A policy's module is imported only when the policy is requested: NumPy is an extra, and must not be needed to list the
names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from nearcast.core.model.membership import VIRTUAL_NODES
from nearcast.core.model.planning import Balancer, Policy
from nearcast.errors import UsageError
from nearcast.policies.hash_ring import LR_HIGH, HashRing

Config = TypeVar("Config", bound=msgspec.Struct)

DYNAMOTH = "dynamoth"
EPULSAR = "epulsar"
NO_THRESHOLDS: Mapping[str, str] = {}


class _Ring(msgspec.Struct, frozen=True, kw_only=True):
    """The thresholds of the hash ring."""

    virtual_nodes: int = VIRTUAL_NODES
    lr_high: float = LR_HIGH


def policy_named(name: str, thresholds: Mapping[str, str] = NO_THRESHOLDS) -> Policy:
    """The policy with this name; thresholds that are not given have their defaults."""
    maker = _MAKERS.get(name)
    if maker is None:
        raise UsageError(f"no policy is called {name!r}: choose one of {', '.join(POLICY_NAMES)}")
    try:
        return maker(thresholds)
    except ModuleNotFoundError as missing:
        raise UsageError(
            f"policy {name!r} needs {missing.name}, which is not installed: pip install 'nearcast[policies]'"
        ) from None


def balancer_named(scheme: str, thresholds: Mapping[str, str] = NO_THRESHOLDS) -> Balancer:
    """Multistage balancing of subscribers with this scheme, ldm or sdm."""
    try:
        from nearcast.policies.multistage import MultistageBalancer, MultistageConfig, Scheme
    except ModuleNotFoundError as missing:
        raise UsageError(
            f"balancing needs {missing.name}, which is not installed: pip install 'nearcast[policies]'"
        ) from None
    if scheme not in tuple(Scheme):
        raise UsageError(f"no scheme is called {scheme!r}: choose one of {', '.join(Scheme)}")
    return MultistageBalancer(_config(MultistageConfig, {**thresholds, "scheme": scheme}))


def _dynamoth(thresholds: Mapping[str, str]) -> Policy:
    from nearcast.policies.dynamoth import Dynamoth, DynamothConfig

    return Dynamoth(_config(DynamothConfig, thresholds))


def _epulsar(thresholds: Mapping[str, str]) -> Policy:
    from nearcast.policies.epulsar import EPulsar, EPulsarConfig

    return EPulsar(_config(EPulsarConfig, thresholds))


def _hash_ring(thresholds: Mapping[str, str]) -> Policy:
    ring = _config(_Ring, thresholds)
    return HashRing(ring.virtual_nodes, ring.lr_high)


def _config(kind: type[Config], thresholds: Mapping[str, str]) -> Config:
    unknown = [name for name in thresholds if name not in kind.__struct_fields__]
    if unknown:
        raise UsageError(f"no threshold is called {unknown[0]!r}: choose from {', '.join(kind.__struct_fields__)}")
    try:
        return msgspec.convert(dict(thresholds), kind, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"invalid thresholds: {error}") from None


_MAKERS: dict[str, Callable[[Mapping[str, str]], Policy]] = {
    DYNAMOTH: _dynamoth,
    EPULSAR: _epulsar,
    HashRing.name: _hash_ring,
}

POLICY_NAMES = tuple(_MAKERS)
