"""The line of a PubSub, without a cluster: where confirmations stand, and what failing calls leave behind."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

import pytest

from nearcast.asyncio.intake import Confirmation, Intake, Key
from nearcast.asyncio.options import ClosedWhileUsed
from nearcast.core.model.message import Message
from nearcast.core.model.settings import DEFAULT_LIMITS, Limits
from nearcast.errors import LimitReached, Unavailable

A, B, P = Key(b"a", False), Key(b"b", False), Key(b"a*", True)


class FakeClient:
    """Attaches when told to."""

    def __init__(self):
        self.consumers = self
        self.begun = {}
        self.detached = []
        self.released = []
        self.mailbox = None

    def attach(self, names, mailbox, consumer, *, pattern):
        self.mailbox = mailbox
        future = self.begun[Key(names[0], pattern)] = asyncio.get_running_loop().create_future()
        return future

    def detach(self, names, mailbox, *, pattern):
        self.detached.append(Key(names[0], pattern))

    def release(self, mailbox):
        self.released.append(mailbox)

    def taken(self):
        pass

    def attaching(self, names, timeout_s):
        return nullcontext()

    async def sync(self, *, timeout_s):
        return 1

    def send(self, topic, payload=b"x", pattern=None):
        message = Message(topic, payload, 1, 1, 0.0, 0.0, pattern)
        self.mailbox.put([message], len(payload))
        return message


def run(test):
    """Run a test with a client and its intake."""

    async def main():
        client = FakeClient()
        await asyncio.wait_for(test(client, Intake(client, DEFAULT_LIMITS)), 5)

    asyncio.run(main())


async def begin(intake, *keys):
    task = asyncio.create_task(intake.subscribe(list(keys), None))
    await asyncio.sleep(0)  # it begins
    return task


async def everything(intake):
    items = []
    while (item := await intake.get(0)) is not None:
        items.append(item)
    return items


def test_confirmations_come_in_the_order_asked():
    async def test(client, intake):
        subscribing = await begin(intake, A, P, B)
        for key in (B, A):
            client.begun[key].set_result(None)
        assert await everything(intake) == []
        client.begun[P].set_result(None)
        await subscribing
        assert await everything(intake) == [
            Confirmation("subscribe", b"a", 1),
            Confirmation("psubscribe", b"a*", 2),
            Confirmation("subscribe", b"b", 3),
        ]

    run(test)


def test_a_message_brings_the_confirmation_it_overtook():
    async def test(client, intake):
        subscribing = await begin(intake, A, B, P)
        client.begun[B].set_result(None)
        first = client.send("b")
        assert await everything(intake) == [Confirmation("subscribe", b"b", 1), first]
        second = client.send("a", pattern="a*")
        assert await everything(intake) == [Confirmation("psubscribe", b"a*", 2), second]
        client.begun[A].set_result(None)
        client.begun[P].set_result(None)
        await subscribing
        assert await everything(intake) == [Confirmation("subscribe", b"a", 3)]

    run(test)


def test_a_subscription_that_fails_leaves_nothing():
    async def test(client, intake):
        held = await begin(intake, A)
        client.begun[A].set_result(None)
        await held
        subscribing = await begin(intake, A, B, P)
        client.begun[B].set_exception(Unavailable("gone"))
        with pytest.raises(Unavailable):
            await subscribing
        assert client.detached == [B, P]
        assert client.begun[P].cancelled()
        assert await everything(intake) == [Confirmation("subscribe", b"a", 1)]

    run(test)


def test_a_cancelled_subscription_lets_the_next_command_run():
    async def test(client, intake):
        subscribing = await begin(intake, A)
        leaving = asyncio.create_task(intake.unsubscribe([A], None, pattern=False))
        await asyncio.sleep(0)  # it begins
        subscribing.cancel()
        await leaving
        assert client.detached == [A]
        assert await everything(intake) == [Confirmation("unsubscribe", b"a", 0)]

    run(test)


def test_closing_ends_readers_and_subscribers():
    async def test(client, intake):
        held = await begin(intake, A)
        client.begun[A].set_result(None)
        await held
        await intake.get(0)
        reading = asyncio.create_task(intake.get(None))
        subscribing = await begin(intake, B)
        intake.close()
        client.begun[B].set_result(None)
        for task in (reading, subscribing):
            with pytest.raises(ClosedWhileUsed):
                await task
        assert sorted(client.detached) == [A, B]

    run(test)


def test_one_that_is_closed_holding_nothing_leaves_nothing_behind():
    """A client that many PubSubs share would keep each of them."""

    async def test(client, intake):
        held = await begin(intake, A)
        client.begun[A].set_result(None)
        await held
        await intake.unsubscribe([A], None, pattern=False)
        intake.close()
        assert client.released == [client.mailbox]

    run(test)


def test_what_is_moved_out_of_the_mailbox_has_a_limit():
    async def test(client, intake):
        intake = Intake(client, Limits(mailbox=8))
        held = await begin(intake, A)
        client.begun[A].set_result(None)
        await held
        for _ in range(10):
            for _ in range(8):
                client.send("a")
            await intake.unsubscribe([B], None, pattern=False)
        messages = [item for item in await everything(intake) if isinstance(item, Message)]
        assert len(messages) <= 3 * 8
        assert client.mailbox.dropped == 80 - len(messages)

    run(test)


def test_answers_that_nobody_reads_have_a_limit():
    async def test(client, _):
        intake = Intake(client, Limits(mailbox=4))
        for _ in range(8):
            await intake.ping(b"", None)
        for command in (
            intake.ping(b"", None),
            intake.subscribe([A], None),
            intake.unsubscribe([A], None, pattern=False),
        ):
            with pytest.raises(LimitReached, match=r"8 answers are waiting: read them with get_message"):
                await command
        assert len(await everything(intake)) == 8
        await intake.ping(b"", None)

    run(test)
