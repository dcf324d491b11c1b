"""The console queries and instructs the controller from outside, as the command line does.

An `Inquiry` carries the questions: it asks the leading controller over the bus, and repeats the question until the
leader answers. A `Console` is made of such questions.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from functools import partial
from typing import Generic, Protocol, TypeVar

import msgspec

from nearcast.core.model.bounds import Bound
from nearcast.core.model.distances import TopicDistances
from nearcast.core.model.journal import BrokerState, Pace
from nearcast.core.model.logs import Log, problem_of
from nearcast.core.model.membership import decode_membership
from nearcast.core.model.names import ANSWER_CHANNEL, CONTROLLER_CHANNEL, MEMBERS, TERM_KEY, encode_topic
from nearcast.core.model.placement import Mode
from nearcast.core.model.planning import Explanation
from nearcast.core.wire import bus, views
from nearcast.errors import NotACluster, Refused, Unavailable, UsageError
from nearcast.runtime.driver import parse_url
from nearcast.runtime.requester import Requester

# --- questions over the bus


ANSWER_S = 0.5  # when to repeat a question: the leader may have changed


class _Numbered(Protocol):
    @property
    def request(self) -> str: ...


Answer = TypeVar("Answer", bound=_Numbered)
Question = bus.Request | bus.RegisterUser | bus.RequestBroker


class Inquiry(Generic[Answer]):
    """Questions with one kind of answer, on one connection to the store's server. Any number may be open at a time."""

    def __init__(self, requester: Requester, decode: Callable[[bytes], Answer | None]) -> None:
        self._requester = requester
        self._decode = decode
        self._name = secrets.token_hex(8)
        self._asked = 0
        self._answers: dict[str, asyncio.Future[Answer]] = {}

    async def open(self) -> None:
        await self._requester.listen(ANSWER_CHANNEL + self._name.encode(), self._heard)

    async def ask(self, make: Callable[[str], Question], timeout_s: float) -> Answer:
        """`make` gets the request's number."""
        self._asked += 1
        request = f"{self._name}.{self._asked}"
        try:
            question = bus.encode(make(request))
        except UnicodeEncodeError as error:
            raise UsageError(f"{error.object!r} is not UTF-8: names are text") from None
        answer = self._answers[request] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                while not answer.done():
                    await self._requester.ask("PUBLISH", CONTROLLER_CHANNEL, question)
                    await asyncio.wait([answer], timeout=ANSWER_S)
                return answer.result()
        except TimeoutError:
            pass
        finally:
            del self._answers[request]
        raise Unavailable(f"no controller answered within {timeout_s:.0f} s: start `nearcast controller`")

    def _heard(self, payload: bytes) -> None:
        heard = self._decode(payload)
        answer = self._answers.get(heard.request) if heard is not None else None
        if heard is not None and answer is not None and not answer.done():
            answer.set_result(heard)


# --- the console


class Console:
    """`url` is any server of the cluster, or its store."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._requester: Requester | None = None
        self._inquiry: Inquiry[bus.State] | None = None

    async def __aenter__(self) -> Console:
        await self._open()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._requester is not None:
            await self._requester.close()

    async def _open(self) -> Inquiry[bus.State]:
        if self._inquiry is None:
            # The store is asked with the password of the server we were given, as clients do with other servers.
            _, credentials = parse_url(self._url)
            self._requester = Requester(await find_store(self._url), credentials)
            inquiry = Inquiry(self._requester, bus.decode_state)
            await inquiry.open()
            self._inquiry = inquiry
        return self._inquiry

    async def state(
        self, *topics: str, timeout_s: float = 10.0, on_part: Callable[[int], None] = lambda topics: None
    ) -> bus.State:
        """What the controller knows, about all planned topics if none is named.

        A long list comes in parts, each as of the moment it was asked for. `timeout_s` limits each part, and `on_part`
        gets the number of topics received so far.
        """
        found: dict[str, views.TopicState] = {}
        distances: dict[str, TopicDistances] = {}
        term = start = 0
        while True:
            show = partial(bus.Show, topics=topics, start=start)
            state = await self._ask(show, timeout_s)
            if start and state.term != term:  # this leader counts in another order
                found, distances, start = {}, {}, 0
                continue
            found |= state.topics
            distances |= state.distances
            term, start = state.term, state.next_start
            if not start:
                return msgspec.structs.replace(state, topics=found, distances=distances)
            on_part(len(found))

    async def overview(self, *, timeout_s: float = 10.0) -> bus.State:
        """The state without any topic: cheap, however many there are."""
        return await self._ask(lambda request: bus.Show(request, brokers_only=True), timeout_s)

    async def move(
        self,
        topic: str,
        mode: Mode,
        brokers: tuple[str, ...],
        *,
        pace: Pace = Pace.EAGER,
        wait: bool = True,
        timeout_s: float = 30.0,
    ) -> views.TopicState:
        """Place a topic and, with `wait`, return when the move has ended."""
        states = await self.move_all({topic: (mode, brokers)}, pace=pace, wait=wait, timeout_s=timeout_s)
        return states[topic]

    async def move_all(
        self,
        placements: dict[str, tuple[Mode, tuple[str, ...]]],
        *,
        pace: Pace = Pace.EAGER,
        wait: bool = True,
        timeout_s: float = 30.0,
    ) -> dict[str, views.TopicState]:
        """Place many topics in one step: all moves begin or none does."""
        for topic in placements:
            encode_topic(topic)
        try:
            async with asyncio.timeout(timeout_s):
                state = await self._accepted(lambda request: bus.MoveTopics(request, placements, pace), timeout_s)
                goals = {topic: (view.target or view.placement).epoch for topic, view in state.topics.items()}
                while wait and not _all_there(state, goals):
                    await asyncio.sleep(0.02)
                    state = await self.state(*placements, timeout_s=timeout_s)
        except TimeoutError:
            raise Unavailable(f"the move did not end within {timeout_s:g} s; if it has begun, it continues") from None
        return {topic: state.topics[topic] for topic in placements}

    async def drain(
        self, broker: str, *, cancel: bool = False, abandon: bool = False, wait: bool = True, timeout_s: float = 60.0
    ) -> views.BrokerView:
        """Let a broker leave in good order and, with `wait`, return when it has left; or call that off.

        It stays until what it keeps of logs is read or has expired, unless that is abandoned.
        """
        state = await self._accepted(lambda request: bus.Drain(request, broker, cancel, abandon), timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                while wait and not cancel and state.brokers[broker].state == BrokerState.LEAVING:
                    await asyncio.sleep(0.05)
                    state = await self.overview(timeout_s=timeout_s)
        except TimeoutError:
            why = _kept_by(broker, state.brokers[broker])
            raise Unavailable(f"{broker} did not leave within {timeout_s:g} s; the drain continues{why}") from None
        return state.brokers[broker]

    async def set_capacity(self, broker: str, bytes_per_s: float, *, timeout_s: float = 10.0) -> views.BrokerView:
        """Set how many bytes per second a broker can send."""
        state = await self._accepted(lambda request: bus.SetCapacity(request, broker, bytes_per_s), timeout_s)
        return state.brokers[broker]

    async def set_messages_high(self, broker: str, per_s: float, *, timeout_s: float = 10.0) -> views.BrokerView:
        """Set how many messages per second a broker may deliver; 0: as the policy says."""
        state = await self._accepted(lambda request: bus.SetMessagesHigh(request, broker, per_s), timeout_s)
        return state.brokers[broker]

    async def explain(self, topic: str, *, timeout_s: float = 10.0) -> Explanation:
        """Why the policy has the topic where it is."""
        state = await self._accepted(lambda request: bus.ExplainTopic(request, topic), timeout_s)
        assert state.explanation is not None
        return state.explanation

    async def set_bound(self, topics: str, bound: Bound | None, *, timeout_s: float = 10.0) -> dict[str, Bound]:
        """Set how long messages may take on a topic, or on all that match a pattern. Returns all bounds."""
        state = await self._accepted(lambda request: bus.SetBound(request, topics, bound), timeout_s)
        return state.bounds

    async def acknowledge_loss(self, *, timeout_s: float = 10.0) -> bus.State:
        """Confirm that the operator knows of the store's last loss: names may be registered again."""
        return await self._accepted(bus.AcknowledgeLoss, timeout_s)

    # --- logs

    async def create_log(self, log: Log, *, timeout_s: float = 10.0) -> Log:
        """Keep the messages of the log's topics. Returns when everything that is published from now on is kept."""
        if problem := problem_of(log):
            raise UsageError(problem)
        state = await self._accepted(lambda request: bus.CreateLog(request, log), timeout_s)
        return next(known for known in state.logs if known.name == log.name)

    async def drop_log(self, name: str, *, timeout_s: float = 10.0) -> None:
        """Keep nothing more for a log. Returns when that is so."""
        await self._accepted(lambda request: bus.DropLog(request, name), timeout_s)

    async def logs(self, *, timeout_s: float = 10.0) -> bus.State:
        """The logs, and how much there is in each of their parts."""
        return await self._accepted(bus.ShowLogs, timeout_s)

    async def abandon_part(self, life: str, *, timeout_s: float = 10.0) -> None:
        """Give up what only servers may have of a life that has ended, and that do not come back."""
        await self._accepted(lambda request: bus.AbandonPart(request, life), timeout_s)

    # --- subscribers

    async def subscribers(self, *users: str, timeout_s: float = 10.0) -> bus.State:
        """The gateways, the subscribers that are moving, and where these users are."""
        return await self._ask(lambda request: bus.ShowSubscribers(request, users), timeout_s)

    async def move_subscriber(self, user: str, broker: str, *, wait: bool = True, timeout_s: float = 30.0) -> bus.State:
        """Send a user to another gateway and, with `wait`, return when it is there and has left the old one."""
        state = await self._accepted(lambda request: bus.PlaceSubscriber(request, user, broker), timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                while wait and (user in state.moving or state.assignments.get(user) != broker):
                    await asyncio.sleep(0.1)
                    state = await self.subscribers(user, timeout_s=timeout_s)
        except TimeoutError:
            raise Unavailable(f"{user} did not move within {timeout_s:g} s: is its program still running?") from None
        return state

    async def shuffle_subscribers(self, *, timeout_s: float = 30.0) -> bus.State:
        """Place all subscribers again from scratch; returns when the moves have been decided."""
        return await self._accepted(bus.ShuffleSubscribers, timeout_s)

    async def _accepted(self, make: Callable[[str], bus.Request], timeout_s: float) -> bus.State:
        state = await self._ask(make, timeout_s)
        if state.problem:
            raise Refused(state.problem)
        return state

    async def _ask(self, make: Callable[[str], bus.Request], timeout_s: float) -> bus.State:
        inquiry = await self._open()
        return await inquiry.ask(make, timeout_s)


async def find_store(url: str) -> str:
    """The store's URL: any member of the cluster knows it, and the store itself has a term."""
    probe = Requester(url)
    try:
        document = await probe.ask("HGET", MEMBERS, "document")
        if isinstance(document, bytes):
            return decode_membership(document).store_url
        if await probe.ask("EXISTS", TERM_KEY) == 1:
            return url
    finally:
        await probe.close()
    address, _ = parse_url(url)  # without the password
    raise NotACluster(f"{address.url} belongs to no cluster: give a server that has an agent, or the store's URL")


def _all_there(state: bus.State, goals: dict[str, int]) -> bool:
    return all(
        (view := state.topics.get(topic)) is not None and view.target is None and view.placement.epoch >= epoch
        for topic, epoch in goals.items()
    )


def _kept_by(broker: str, view: views.BrokerView) -> str:
    """Why a broker that leaves is still there, if that is because of logs, and what to do."""
    unread = sorted(log.partition("@")[0] for log, load in view.keeps.items() if not load.is_read)
    if not unread:
        return ""
    return (
        f": it keeps messages of {', '.join(unread)} that are not read and have not expired;"
        f" `nearcast brokers drain {broker} --abandon` gives them up"
    )
