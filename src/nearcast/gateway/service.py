"""The gateway of one broker: its users, their sessions, and what flows to them.

`Gateway` starts and stops the gateway and its sessions; `operations.py` carries out what subscribers ask. For the
controller, `coordination.py` uses `online`, `order_move` and `rates`. `Coordination` is what the gateway needs from it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from nearcast.core.model import tokens
from nearcast.core.model.tokens import Token
from nearcast.core.wire.gateway import LOGGED_IN_AGAIN, LOGGED_OUT, Login, Move, Operation
from nearcast.errors import ClusterError, Refused, UsageError
from nearcast.gateway.access import Admission, NewTopics
from nearcast.gateway.data_cluster import DataCluster, Wanted
from nearcast.gateway.directory import Attendance, Directory, StoreConnection
from nearcast.gateway.distances import Pings
from nearcast.gateway.operations import FAILED, Operations
from nearcast.gateway.registrar import Applicant, registrar
from nearcast.gateway.results import CatchUp, Listeners, NotificationLoop, Results
from nearcast.gateway.rights import Rights
from nearcast.gateway.session import Session
from nearcast.gateway.settings import DEFAULT_SETTINGS, GatewaySettings
from nearcast.gateway.subscriptions import BackendSubscriptions, Sharing
from nearcast.gateway.topics import Topics
from nearcast.gateway.users import Revocation, Users
from nearcast.runtime.workers import Pauses, Troubles, Workers

# --- upkeep


log = logging.getLogger("nearcast.gateway")

STORE_S = 1.0  # between two times acknowledged cursors are stored
SWEEP_S = 5.0  # between two checks for users whose home is elsewhere now
SWEEP_USERS = 1000  # checked each time


class Upkeep:
    """The periodic work of one gateway: it stores cursors, and releases what it holds for users who have moved away."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._swept: list[str] = []

    async def store_cursors(self) -> None:
        while True:
            await asyncio.sleep(STORE_S)
            try:
                await self.store_all()
            except ClusterError as error:
                log.info("cursors cannot be stored until the store answers: %s", error)

    async def store_all(self) -> None:
        await self.store(self._gateway.open_sessions)

    async def store(self, sessions: list[Session]) -> None:
        taken = [(session, session.take_acknowledged()) for session in sessions]
        cursors = [(session.user, *cursor) for session, cursors in taken for cursor in cursors.items()]
        try:
            await self._gateway.directory.advance(cursors)
        except ClusterError:
            for session, acknowledged in taken:
                session.put_back_acknowledged(acknowledged)
            raise

    async def store_cursors_of(self, user: str) -> None:
        """Call this before the user's entries are read for another session."""
        session = self._gateway.session_of(user)
        if session is not None:
            await self.store([session])

    async def sweep(self) -> None:
        sharing = self._gateway.sharing
        while True:
            await asyncio.sleep(SWEEP_S)
            self._swept = self._swept or [user for user in sharing.users if self._gateway.session_of(user) is None]
            users, self._swept = self._swept[:SWEEP_USERS], self._swept[SWEEP_USERS:]
            try:
                await self.let_go_of_strangers(users)
            except ClusterError as error:
                log.info("cannot check which users have moved away until the store answers: %s", error)

    async def let_go_of_strangers(self, users: list[str]) -> None:
        """Release what is held here for users without a session here whose home is another broker now."""
        gateway = self._gateway
        for user in users:
            subscriptions = list(gateway.sharing.held_by(user))
            # She may come back while we ask the store: what she then holds must stay.
            if not gateway.is_here(user) and await gateway.directory.leave(user, gateway.broker, subscriptions):
                for subscription in subscriptions if not gateway.is_here(user) else ():
                    gateway.let_go(user, subscription)


T = TypeVar("T")

STOPPING = "the gateway is stopping"


class Coordination(Protocol):
    """Knows all gateways: the controller, asked over the bus."""

    workers: Workers

    async def start(self, gateway: Gateway) -> None: ...

    async def stop(self) -> None: ...

    async def register(self, user: str) -> None:
        """registeruser: returns if the user may have this name; nearcast.errors.Refused says why not."""

    async def request(
        self,
        user: str,
        latitude: float | None = None,
        longitude: float | None = None,
        round_trips_s: Mapping[str, float] | None = None,
        *,
        home: str = "",
    ) -> tuple[str, str]:
        """requestbroker: broker and URL of the gateway where the user should log in. `home`: where she last was."""
        ...


# --- the gateway


class Gateway:
    """The gateway of one broker. `url`: where subscribers reach it (http://host:port)."""

    def __init__(
        self,
        broker: str,
        url: str,
        server_url: str,
        store_url: str,
        *,
        settings: GatewaySettings = DEFAULT_SETTINGS,
        data_token: str = "",
        coordination: Coordination | None = None,
    ) -> None:
        self.broker = broker
        self.url = url
        self.settings = settings
        self.admission = Admission(settings)
        self._registrar = registrar(settings.register, settings.register_secret)
        self._store = StoreConnection(store_url)
        self.users = Users(self._store, settings.token_s)
        self.directory = Directory(self._store)
        self.sharing = Sharing()
        self._troubles = Troubles(log)
        self.pings = Pings(random.Random())
        self.topics = Topics(server_url, self._troubles)
        self.rights = Rights(settings.allow)
        self.new_topics = NewTopics(settings.new_topics_per_minute)
        self.data = DataCluster(self.directory.data_url, data_token, settings.requests)
        self.results = Results(self.data, settings.results_kept, settings.results_kept_bytes)
        self.backend_subscriptions = BackendSubscriptions(self.data, broker, url, self.sharing.is_held)
        self.listeners = Listeners(self.results, self.sharing.is_held, self.backend_subscriptions.release)
        self._notifications = NotificationLoop(self.data, broker, self.listeners, self.backend_subscriptions)
        self._operations = Operations(self)
        self.upkeep = Upkeep(self)
        self._revocation = Revocation(self)
        self._attendance = Attendance(self._store, settings.forget_days)
        self.workers = Workers(self._troubles)
        self._coordination = coordination
        self._sessions: dict[str, Session] = {}  # of logged-in users
        self._open: dict[Session, asyncio.Task[None]] = {}  # all, with the task that catches up
        self._tasks: set[asyncio.Task[Any]] = set()
        self._arriving: Counter[str] = Counter()  # logins in progress, by user
        self._stopping = False

    # --- life

    async def start(self) -> None:
        """Returns when subscribers may come. The store must answer; the data cluster need not."""
        await self._from_store(self.users.first_key)
        await self._from_store(self._remember)
        await self._from_store(lambda: self.directory.announce(self.broker, self.url))
        self.workers.start("backend subscriptions", self.backend_subscriptions.run)
        self.workers.start("topics", self.topics.connect)
        self.workers.start("pings", self.pings.run)
        self.workers.start("notifications", self._notifications.run)
        self.workers.start("cursors", self.upkeep.store_cursors)
        self.workers.start("sweep", self.upkeep.sweep)
        self.workers.start("revocation", self._revocation.watch)
        self.workers.start("attendance", self._attendance.keep)
        if self._coordination is not None:
            await self._coordination.start(self)

    async def stop(self) -> None:
        """End all sessions, store their cursors, and leave."""
        if self._coordination is not None:
            await self._coordination.stop()
        self._stopping = True
        for session in list(self._open):
            session.end(STOPPING)
        try:
            await self.upkeep.store_all()
            await self.directory.withdraw(self.broker)
        except ClusterError as error:
            log.warning("the cursors of the last second were not stored: %s", error)
        await self.workers.stop()
        self.backend_subscriptions.give_up()
        for task in [*self._tasks, *self._open.values()]:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._open.values(), return_exceptions=True)
        await self.topics.stop()
        await self.data.close()
        await self._store.close()

    async def _from_store(self, ask: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Ask until the store answers: it may start after us."""
        pauses = Pauses()
        while True:
            try:
                return await ask()
            except ClusterError as error:
                log.warning("the gateway is waiting for the store: %s", error)
                await asyncio.sleep(pauses.next_s())

    async def _remember(self) -> None:
        """Restore what this gateway held before it was restarted."""
        for subscription, users in (await self.directory.holders(self.broker)).items():
            for user in users:
                entry = (await self.directory.entries(user)).get(subscription)
                if entry is None:
                    await self.directory.remove(user, self.broker, subscription)
                elif not await self.directory.leave(user, self.broker, [subscription]):
                    self.sharing.hold(user, subscription)
                    self.backend_subscriptions.restore(subscription, Wanted(entry.channel, entry.parameters, user))
            self.backend_subscriptions.release(subscription)  # if no user is left

    def run_task(self, job: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run it until it ends, or the gateway does."""
        task = asyncio.create_task(job)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- for coordination

    def online(self) -> dict[str, Sequence[str]]:
        """The users with a session here, and their backend subscriptions."""
        return {user: tuple(session.deliveries) for user, session in self._sessions.items()}

    def order_move(self, user: str, broker: str, url: str) -> bool:
        """Tell the user's session to move to another gateway. False: the user has no session here."""
        session = self._sessions.get(user)
        if session is None:
            return False
        session.send(Move(broker, url))
        return True

    async def rates(self) -> dict[str, float]:
        """Bytes per second of backend subscriptions, as the data cluster measures them."""
        return await self.data.rates()

    async def register(self, applicant: Applicant, token: str = "") -> str:
        """A token for a new user, or a new token for the bearer of a valid one. Refused: the name is taken."""
        user = tokens.checked_user(applicant.user)
        known, _ = await self.users.check(user, token)
        if known is not None:
            return await self.users.renew(user, known)
        await self._registrar.admit(applicant)
        if self._coordination is not None:
            await self._coordination.register(user)
        return await self.users.register(user)

    async def request(
        self, user: str, latitude: float | None, longitude: float | None, round_trips_s: Mapping[str, float]
    ) -> tuple[str, str]:
        """The broker and gateway where the user should log in."""
        tokens.checked_user(user)
        if self._coordination is None:
            return self.broker, self.url
        home = (await self.directory.homes([user]))[user]
        return await self._coordination.request(user, latitude, longitude, round_trips_s, home=home)

    @property
    def problem(self) -> str:
        """What failed unexpectedly a short while ago, in words; empty if nothing did."""
        return self._troubles.problem

    @property
    def health(self) -> dict[str, Any]:
        return {
            "broker": self.broker,
            "sessions": len(self._open),
            "users": len(self._sessions),
            "subscriptions": len(list(self.sharing.subscriptions)),
            "data_cluster": self._notifications.problem or "connected",
            "waiting_for_data_cluster": self.backend_subscriptions.waiting,
            "workers": self.workers.health | (self._coordination.workers.health if self._coordination else {}),
            "failed_operations": self._operations.failures,
            "problem": self.problem,
        }

    # --- for transports

    def open_session(self, address: str, wake: Callable[[], None]) -> Session:
        """A session for a new connection. Refused: a limit is reached."""
        problem = STOPPING if self._stopping else self.admission.problem(address, time.monotonic())
        if problem:
            raise Refused(problem)
        session = Session(self.settings, address, wake)
        self.admission.opened(address)
        catch_up = CatchUp(session, self.data, self.results, self.settings.catch_up_executions)
        session.has_work = catch_up.wake
        self._open[session] = asyncio.create_task(catch_up.run())
        return session

    async def login(self, session: Session, login: Login) -> bool:
        """Whether the session is now open; if not, it has ended with the reason."""
        try:
            token = await self._checked(session, login)
            if token is None:
                return False
            self._arriving[login.user] += 1
            await self._operations.welcome(session, login, token)
        except ClusterError as error:
            session.refuse_login(f"try again later: {error}", final=False)
        except Exception:
            log.exception("a login of %s failed", login.user)
            session.refuse_login(FAILED, final=False)
        return session.is_open

    async def _checked(self, session: Session, login: Login) -> Token | None:
        """The login's token if it is valid; otherwise the session has ended."""
        try:
            token, problem = await self.users.check(tokens.checked_user(login.user), login.token)
        except UsageError as error:
            token, problem = None, str(error)
        if token is None:
            self.admission.refused(session.address, time.monotonic())
            session.refuse_login(problem, final=True)
        return token

    def arrived(self, user: str) -> None:
        """A login has brought all of the user's subscriptions here, or has failed."""
        self._arriving[user] -= 1
        if not self._arriving[user]:
            del self._arriving[user]

    def admit(self, session: Session, user: str) -> None:
        """Give the session to the user. Her earlier session, if any, ends: its connection may be dead."""
        self.admission.logged_in(session.address)
        before = self._sessions.get(user)
        self._sessions[user] = session
        if before is not None:
            self._leave(before)
            before.end(LOGGED_IN_AGAIN, final=True)

    def perform(self, session: Session, operation: Operation) -> None:
        self._operations.start(session, operation)

    async def logout(self, session: Session) -> None:
        """Send everything from before the logout, then `bye`."""
        await self.topics.settle(session)
        session.end(LOGGED_OUT)

    async def close_session(self, session: Session) -> None:
        """The connection has ended. What is kept for the user stays."""
        task = self._open.pop(session, None)
        if task is None:
            return
        task.cancel()
        self.pings.remove(session)
        self._operations.forget(session)
        self.admission.closed(session.address, known=bool(session.user))
        session.end("the connection was lost")
        self._leave(session)
        if self._sessions.get(session.user) is session:
            del self._sessions[session.user]
        try:
            await self.upkeep.store([session])
            if session.user and session.user not in self._sessions:
                await self.upkeep.let_go_of_strangers([session.user])
        except ClusterError as error:
            log.info("the end of a session of %s could not be stored: %s", session.user, error)

    def _leave(self, session: Session) -> None:
        self.listeners.remove(session, session.deliveries)
        for topic in list(session.topics):
            self.topics.leave(session, topic)

    def let_go(self, user: str, subscription: str) -> None:
        if self.sharing.let_go(user, subscription):
            self.backend_subscriptions.release(subscription)

    def is_here(self, user: str) -> bool:
        """Whether she has a session here, or is about to."""
        return user in self._sessions or user in self._arriving

    def session_of(self, user: str) -> Session | None:
        return self._sessions.get(user)

    @property
    def open_sessions(self) -> list[Session]:
        return list(self._open)
