"""Sharing: who of this gateway's users holds which backend subscription.

Identical frontend subscriptions of a gateway's users are one subscription of its broker: the first user in attaches it
at the data cluster, the last one out releases it. A user who is offline still holds what is kept for her.
"""

from __future__ import annotations

from collections.abc import Iterable

_NOBODY: frozenset[str] = frozenset()


class Sharing:
    """Users by backend subscription, and the other way round."""

    def __init__(self) -> None:
        self._users: dict[str, set[str]] = {}
        self._held: dict[str, set[str]] = {}

    def hold(self, user: str, subscription: str) -> None:
        self._users.setdefault(subscription, set()).add(user)
        self._held.setdefault(user, set()).add(subscription)

    def let_go(self, user: str, subscription: str) -> bool:
        """Whether nobody is left, and somebody was."""
        users = self._users.get(subscription, set())
        if user not in users:
            return False
        users.discard(user)
        held = self._held[user]
        held.discard(subscription)
        if not held:
            del self._held[user]
        if not users:
            del self._users[subscription]
        return not users

    def is_held(self, subscription: str) -> bool:
        return subscription in self._users

    def held_by(self, user: str) -> Iterable[str]:
        return self._held.get(user, _NOBODY)

    @property
    def subscriptions(self) -> Iterable[str]:
        return self._users.keys()

    @property
    def users(self) -> Iterable[str]:
        return self._held.keys()
