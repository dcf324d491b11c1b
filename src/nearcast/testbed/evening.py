"""The evening of the demo's second act: its topics, how many people use them, and what the policy is to do about it.

Capacity, thresholds and rates are chosen together, for a machine with two cores: a server carries a quiet evening, and
not a busy one. What one delivery of 300 bytes costs a server was measured: about 400 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from nearcast.testbed.load import LoadShape

CHATS = tuple(f"chat.{number}" for number in range(1, 5))
VOTES = "votes"  # many publications for few subscribers
SCORES = "scores"  # few publications for many subscribers

FIRST_BROKER = "b1"
BROKERS_MAX = 4
CAPACITY_BYTES_PER_S = 300e3
PAYLOAD_BYTES = 300

POLICY = "dynamoth"
WAIT_S = 3.0  # between two changes of the plan; a cluster at work would wait longer
LR_HIGH = 0.8
LR_SAFE = 0.6
THRESHOLDS = (
    f"lr_high={LR_HIGH}",
    f"lr_safe={LR_SAFE}",
    "publication_threshold=130",  # per second; votes has 20 in quiet times and 240 in busy ones
    "all_subs_threshold=65",  # publications per second and subscriber; votes has 2
    "subscriber_threshold=8",  # scores has 3 in quiet times and 17 in busy ones
    "all_pubs_threshold=0.5",  # subscribers per publication per second
)
CONTROLLER_OPTIONS = (
    *("--policy", POLICY, "--wait", str(WAIT_S), "--max-brokers", str(BROKERS_MAX)),
    *(word for threshold in THRESHOLDS for word in ("--set", threshold)),
)


class Goal(StrEnum):
    """What the policy is to do, as a sentence for whoever misses it."""

    SERVER_ADDED = "a server is added and carries topics"
    VOTES_REPLICATED = "votes is replicated, all_subscribers"
    SCORES_REPLICATED = "scores is replicated, all_publishers"
    COLLAPSED = "every topic is on one server again"
    SERVERS_REMOVED = "the added servers are drained and stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """People behave like this until the policy has done what is awaited, and then for so many seconds more."""

    title: str
    chats_per_s: float = 60.0  # messages of all chats together
    votes_per_s: float = 20.0
    guests: int = 0  # who come to watch the scores
    seconds: float = 2.0  # to look at what has become of it
    kill: bool = False  # end the controller with SIGKILL, and start it again
    goals: tuple[Goal, ...] = ()


CHATS_BUSY_PER_S = 420.0
VOTES_BUSY_PER_S = 240.0
GUESTS = 14

EVENING = (
    Scene(title="a quiet evening: one server is enough", seconds=4.0),
    Scene(title="the chats fill up", chats_per_s=CHATS_BUSY_PER_S, goals=(Goal.SERVER_ADDED,)),
    Scene(
        title="voting begins: many publications on one topic",
        chats_per_s=CHATS_BUSY_PER_S,
        votes_per_s=VOTES_BUSY_PER_S,
        goals=(Goal.VOTES_REPLICATED,),
    ),
    Scene(
        title="a crowd comes to watch the scores: many subscribers on one topic",
        chats_per_s=CHATS_BUSY_PER_S,
        votes_per_s=VOTES_BUSY_PER_S,
        guests=GUESTS,
        kill=True,
        goals=(Goal.SCORES_REPLICATED,),
    ),
    Scene(title="everybody goes home", goals=(Goal.COLLAPSED, Goal.SERVERS_REMOVED)),
)


@dataclass(frozen=True, slots=True)
class PolicyPlan:
    seed: int = 0
    scenes: tuple[Scene, ...] = EVENING

    @property
    def guests(self) -> int:
        return max(scene.guests for scene in self.scenes)

    def shapes(self) -> dict[str, LoadShape]:
        """The people who stay all the evening, by what they use."""
        quiet = Scene(title="")
        return {
            "chats": self._shape(4, 2, quiet.chats_per_s, *CHATS),
            VOTES: self._shape(8, 2, quiet.votes_per_s, VOTES),
            SCORES: self._shape(2, 3, 10.0, SCORES),
        }

    def _shape(self, publishers: int, subscribers: int, rate_per_s: float, *topics: str) -> LoadShape:
        return LoadShape(
            publishers, subscribers, rate_per_s=rate_per_s, payload_bytes=PAYLOAD_BYTES, seed=self.seed, names=topics
        )
