"""The policy: channel-level, then system-level rebalancing, in the order of section III.B."""

from __future__ import annotations

import numpy as np

from nearcast.core.model.placement import Plan
from nearcast.core.model.planning import (
    AddBroker,
    Cause,
    KeepBroker,
    Proposal,
    ProposedChange,
    Reason,
    RemoveBroker,
    Snapshot,
)
from nearcast.policies.dynamoth.draft import Draft, DynamothConfig
from nearcast.policies.dynamoth.rebalancing import lowered, use_new
from nearcast.policies.dynamoth.replication import Wish, replicate
from nearcast.policies.dynamoth.scaling import (
    global_ratio,
    how_many,
    low_reason,
    removable,
    removal,
    single_move,
    would_help,
)
from nearcast.policies.loads import Loads

DEFAULT = DynamothConfig()


class Dynamoth:
    """The policy; a pure function of snapshot and plan."""

    name = "dynamoth"

    def __init__(self, config: DynamothConfig = DEFAULT) -> None:
        self._config = config

    def propose(self, snapshot: Snapshot, plan: Plan) -> Proposal:
        loads = Loads.of(snapshot, plan)
        if loads.draining.all():
            problem = "no broker may carry topics: start one, or cancel a removal"
            return Proposal(self.name, predicted=Draft(loads).predicted(), problem=problem)
        return _Session(snapshot, loads, self._config).proposal(self.name)


class _Session:
    """One call of the policy: the draft as it grows, and the changes of brokers."""

    def __init__(self, snapshot: Snapshot, loads: Loads, config: DynamothConfig) -> None:
        self._snapshot = snapshot
        self._loads = loads
        self._config = config
        self._draft = Draft(loads)
        self._brokers: list[ProposedChange] = []  # changes of brokers
        self._problem = ""

    def proposal(self, name: str) -> Proposal:
        if global_ratio(self._draft) > self._config.lr_low + self._config.level_gap:
            value, threshold = global_ratio(self._draft), self._config.lr_low
            self._keep(Reason(Cause.LOAD_ROSE, "global load_ratio", value, threshold))
        unmet = replicate(self._draft, self._config)
        use_new(self._draft, self._config)
        still_high = self._high_load()
        if not self._drain(asked_only=still_high) and not still_high:
            self._low_load()
        if unmet and not self._problem:
            self._problem = self._shortage(unmet)
        changes = (*self._brokers, *self._draft.placements())
        return Proposal(name, changes, self._draft.predicted(), self._problem)

    def _keep(self, reason: Reason) -> None:
        """Cancel the removals that a policy began, but not those that a person asked for."""
        for broker in np.flatnonzero(self._loads.draining & self._loads.removable & ~self._draft.usable).tolist():
            self._draft.usable[broker] = True
            self._brokers.append(KeepBroker(self._loads.brokers[broker], reason))

    # --- high load

    def _high_load(self) -> bool:
        """Returns whether the load was too high; then no broker may be removed in this call."""
        before, config = self._draft, self._config
        if before.highest_ratio < config.lr_high:
            return False
        self._draft = lowered(before, config)
        if self._draft.highest_ratio >= config.lr_high:
            self._take_back(before)
        if self._draft.highest_ratio >= config.lr_high:
            return self._beyond_moves()
        return True

    def _take_back(self, before: Draft) -> None:
        """Cancel removals if keeping those brokers makes a difference."""
        trial = before.copy()
        trial.usable |= self._loads.removable
        if (trial.usable == before.usable).all():
            return
        trial = lowered(trial, self._config)
        if trial.highest_ratio < max(self._config.lr_high, self._draft.highest_ratio - self._config.level_gap):
            self._keep(Reason(Cause.LOAD_ROSE, "load_ratio", before.highest_ratio, self._config.lr_high))
            self._draft = trial

    def _beyond_moves(self) -> bool:
        """Try what is left when Algorithm 2 and levelling have not brought every ratio below `lr_high`."""
        measured = Draft(self._loads)
        measured.usable = self._draft.usable
        moved = single_move(measured, self._config)
        if moved is not None:
            self._draft = moved
            return True
        busiest = int(self._draft.ratio.argmax())
        ratio, name = self._draft.highest_ratio, self._loads.brokers[busiest]
        says = f"{name} stays at load ratio {ratio:.2f}, lr_high is {self._config.lr_high:g}"
        if not would_help(self._draft, self._config):
            self._problem = f"{says}: {self._remedy(busiest)}"
            return bool(self._draft.placements())
        if self._snapshot.coming > 0:
            self._problem = f"{says}: a new broker is coming"
        elif self._snapshot.spare > 0:
            count = how_many(self._draft, self._config, self._snapshot.spare)
            self._brokers.append(AddBroker(Reason(Cause.HIGH_LOAD, "load_ratio", ratio, self._config.lr_high), count))
            self._problem = f"{says} until the new broker joins"
        else:
            self._problem = f"{says}, and no broker can be rented: allow more brokers, or larger ones"
        return True

    def _remedy(self, broker: int) -> str:
        shelf = self._draft.shelf(broker)
        largest = max((*shelf.single, *shelf.replicated), default=None)
        if largest is None:
            return "its load comes from no topic that can be moved; check what else runs on its server"
        topic = self._loads.topics[largest[1]]
        return f"topic {topic!r} alone is too much for a broker and cannot be divided further; use larger brokers"

    def _shortage(self, unmet: list[Wish]) -> str:
        wish = unmet[0]
        here = len(self._draft.brokers_of(wish.topic))
        topic = self._loads.topics[wish.topic]
        if wish.grows:
            return f"topic {topic!r} needs {wish.count} brokers and has {here}: the others have no room; add brokers"
        return f"topic {topic!r} needs {wish.count} of its {here} brokers, but those are too busy to take the rest"

    # --- low load

    def _drain(self, asked_only: bool) -> bool:
        """Continue removals, or only those that a person asked for. Returns whether there are any."""
        steps = self._config.topics_per_step
        going = ~self._draft.usable & ~(self._loads.removable & asked_only)
        draining = np.flatnonzero(going).tolist()
        for broker in draining:
            name, by_policy = self._loads.brokers[broker], bool(self._loads.removable[broker])
            limit = self._config.lr_fill if by_policy else self._config.below_high
            found = removal(self._draft, broker, limit)
            if found.left and by_policy:
                reason = Reason(Cause.LOAD_ROSE, "topics that fit on no other broker", float(len(found.left)), 0.0)
                self._brokers.append(KeepBroker(name, reason))
                self._draft.usable[broker] = True
                continue
            if found.left and not self._problem:
                self._problem = f"{len(found.left)} topics of {name} fit on no other broker: add one, or keep {name}"
            steps -= found.begin(self._draft, steps, low_reason(self._draft, self._config))
        return bool(draining)

    def _low_load(self) -> None:
        if self._snapshot.coming > 0 or self._brokers or self._draft.placements():
            return
        found = removable(self._draft, self._config)
        if found is not None:
            reason = low_reason(self._draft, self._config)
            self._brokers.append(RemoveBroker(self._loads.brokers[found.broker], reason))
            found.begin(self._draft, self._config.topics_per_step, reason)
