"""The ledger: the controller's journal, changed only through commits to the store.

Changes collect while a commit is in flight and go out together with the next one, so a thousand moves cost a few
commits. What follows from a change is done once it is in the store, never before.
"""

from __future__ import annotations

from collections.abc import Callable

from nearcast.core.controller.effects import Commit
from nearcast.core.model.journal import (
    MEMBERSHIP_KEY,
    BrokerEntry,
    Entry,
    Journal,
    TopicEntry,
    apply,
    broker_key,
    encode_entry,
    topic_key,
)
from nearcast.core.model.membership import Membership

Then = Callable[[float], None]


class Ledger:
    """The journal in memory, with the changes that are not in the store yet."""

    def __init__(self, version: int, journal: Journal, term: int) -> None:
        self.version = version
        self.term = term
        self.journal = journal
        self._next: dict[str, Entry] = {}
        self._thens: list[Then] = []
        self._sent: dict[str, Entry] | None = None
        self._sent_thens: list[Then] = []

    def write(self, changes: dict[str, Entry], then: Then | None = None) -> None:
        """Have these entries committed, all in the same commit, and call `then` after that."""
        self._next.update(changes)
        if then is not None:
            self._thens.append(then)

    def write_topic(self, topic: str, entry: TopicEntry, then: Then | None = None) -> None:
        self.write({topic_key(topic): entry}, then)

    def write_broker(self, broker: str, entry: BrokerEntry, then: Then | None = None) -> None:
        self.write({broker_key(broker): entry}, then)

    def membership(self) -> Membership:
        """The newest membership, committed or still in flight."""
        for pending in (self._next, self._sent or {}):
            entry = pending.get(MEMBERSHIP_KEY)
            if isinstance(entry, Membership):
                return entry
        return self.journal.membership

    def pending(self, key: str) -> bool:
        """Whether a change of this entry is not in the store yet."""
        return key in self._next or (self._sent is not None and key in self._sent)

    @property
    def waiting(self) -> int:
        """How many changes are not in the store yet."""
        return len(self._next) + len(self._sent or ())

    def commit(self, now_s: float) -> Commit | None:
        """The commit to send now, if there is one and none is in flight."""
        if self._sent is not None:
            return None
        if not self._next:
            thens, self._thens = self._thens, []
            for then in thens:  # nothing had to change for these
                then(now_s)
            return None
        self._sent, self._next = self._next, {}
        self._sent_thens, self._thens = self._thens, []
        changes = {key: encode_entry(entry) for key, entry in self._sent.items()}
        return Commit(self.version, self.term, changes)

    def committed(self, now_s: float) -> None:
        """The commit in flight is in the store."""
        assert self._sent is not None
        for key, entry in self._sent.items():
            apply(self.journal, key, entry)
        self.version += 1
        self._sent = None
        thens, self._sent_thens = self._sent_thens, []
        for then in thens:
            then(now_s)
