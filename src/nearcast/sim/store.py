"""The store of a simulated cluster, and the desk between it and a controller."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from copy import copy
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import msgspec

from nearcast.core.controller.effects import Campaign, Commit, LoadJournal, Resign, StoreEffect
from nearcast.runtime.store import MemoryStore

if TYPE_CHECKING:
    from nearcast.sim.process import ControllerProcess


PAST_MAX = 100


class SimStore(MemoryStore):
    """The store in memory, which can lose its data."""

    def __init__(self) -> None:
        super().__init__()
        self._past: deque[MemoryStore] = deque(maxlen=PAST_MAX)  # the state before each of the last commits

    def commit_now(self, version: int, term: int, changes: dict[str, bytes]) -> bool:
        before = copy(self)
        before._entries = dict(self._entries)
        ok = super().commit_now(version, term, changes)
        if ok:
            self._past.append(before)
        return ok

    def lose(self, commits: int | None) -> None:
        """Go back to the state of this many commits ago; None empties the store."""
        past = [MemoryStore(), *self._past]
        old = past[0] if commits is None else past[-min(commits, len(past))]
        for name in vars(MemoryStore()):
            setattr(self, name, getattr(old, name))
        self._entries = dict(self._entries)
        self._past.clear()


# --- the desk


DESK = "the store's journal"  # a controller's connection to it is separate from the one to the bus
PART = 3  # entries in one step of a load: few, so that journals of a handful of topics have several

Answer = Callable[[float], None]


class StoreTrouble(msgspec.Struct, frozen=True):
    """What happens to an operation of the store now."""

    slow_s: float = 0.0  # it takes up to this much longer
    fail_share: float = 0.0


NO_TROUBLE = StoreTrouble()


class SimStoreDesk:
    """Carries a controller's requests to the store: the counterpart of `runtime/controller.py`.

    As there, campaigns do not wait for the journal, and requests of one kind are served one after the other. Each takes
    some time. While the store is in trouble, each takes much longer and some fail, before or after the store has
    carried them out.
    """

    def __init__(self, process: ControllerProcess, rng: Random) -> None:
        self._process = process
        self._world = process.world
        self._rng = rng
        self._sent_s = self._answered_s = 0.0  # when the last campaign arrives, and its answer
        self._journal: deque[StoreEffect] = deque()

    def ask(self, effect: StoreEffect) -> None:
        """Send a request. It still arrives if the controller crashes afterwards."""
        if isinstance(effect, Campaign | Resign):
            self._sent_s = max(self._sent_s, self._world.timeline.now_s + self._delay_s())
            self._world.timeline.after(self._sent_s - self._world.timeline.now_s, self._lead, effect)
            return
        self._journal.append(effect)
        if len(self._journal) == 1:
            self._serve()

    def _serve(self) -> None:
        self._later(self._reach, self._journal[0])

    def _delay_s(self) -> float:
        slow_s = self._world.faults.store_trouble.slow_s
        return 0.001 + self._rng.random() * 0.01 + (self._rng.random() * slow_s if slow_s else 0.0)

    def _later(self, action: Callable[..., None], *arguments: object) -> None:
        self._world.timeline.after(self._delay_s(), action, *arguments)

    def _fails(self) -> tuple[bool, bool]:
        """Whether this request fails, and whether the store never received it."""
        fails = self._rng.random() < self._world.faults.store_trouble.fail_share
        away = self._world.network.is_cut(self._process.name, DESK) or not self._world.hosts["store"].up
        return fails or away, away or (fails and self._rng.random() < 0.5)

    def _lead(self, effect: StoreEffect) -> None:
        """A campaign has arrived. Campaigns arrive in order, and do not wait for answers."""
        fails, unheard = self._fails()
        answer = self._carry_out(effect) if not unheard else None
        self._answered_s = max(self._answered_s, self._world.timeline.now_s + self._delay_s())
        outcome = answer if answer is not None and not fails else partial(self._failed, effect)
        self._world.timeline.after(self._answered_s - self._world.timeline.now_s, self._process.answered, outcome)

    def _reach(self, effect: StoreEffect) -> None:
        fails, unheard = self._fails()
        if unheard:
            self._reply(partial(self._failed, effect))
        elif isinstance(effect, LoadJournal) and not fails:
            version, entries = self._world.store.load_now()
            load_s = self._world.setup.load_s if entries else 0.0
            self._world.timeline.after(load_s, self._read, effect, version, sorted(entries))
        else:
            answer = self._carry_out(effect)
            self._reply(partial(self._failed, effect) if fails else answer)

    def _carry_out(self, effect: StoreEffect) -> Answer:
        store, controller = self._world.store, self._process.controller
        if isinstance(effect, Campaign):
            return partial(controller.campaigned, store.campaign_now(effect.candidate, effect.stale, effect.above))
        if isinstance(effect, Commit):
            ok = store.commit_now(effect.version, effect.term, effect.changes)
            if ok:
                self._world.history.committed(effect.changes, self._world.timeline.now_s)
            return partial(controller.committed, effect.term, ok)
        if isinstance(effect, Resign):
            store.resign_now(effect.candidate)
        return lambda now_s: None

    def _read(self, load: LoadJournal, version: int, keys: list[str]) -> None:
        """Read the journal part by part, each as it is when its turn comes."""
        now_version, entries = self._world.store.load_now()
        controller = self._process.controller
        if now_version != version or not self._world.hosts["store"].up:
            self._reply(partial(controller.not_loaded, load.term, "it changed in the meantime"))
        elif keys:
            part = {key: entries[key] for key in keys[:PART]}
            self._process.answered(partial(controller.read, load.term, part))
            self._later(self._read, load, version, keys[PART:])
        else:
            self._reply(partial(controller.loaded, load.term, version))

    def _failed(self, effect: StoreEffect, now_s: float) -> None:
        controller = self._process.controller
        if isinstance(effect, Campaign):
            controller.not_campaigned(now_s)
        elif isinstance(effect, LoadJournal):
            controller.not_loaded(effect.term, "the store failed", now_s)
        elif isinstance(effect, Commit):
            controller.committed(effect.term, False, now_s)

    def _reply(self, answer: Answer) -> None:
        self._later(self._done, answer)

    def _done(self, answer: Answer) -> None:
        self._journal.popleft()
        if self._journal:
            self._serve()
        self._process.answered(answer)
