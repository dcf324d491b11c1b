"""Whether a server can be the store: that of a broker is not to be led from, unless it was the store before.

A controller that is given a broker's server by mistake would lead there, all alone, beside the controllers of the
cluster, and nobody would hear of it.
"""

from __future__ import annotations

import asyncio
import logging

from nearcast.core.membership import read_membership
from nearcast.core.names import CLAIM_KEY, MEMBERS, READY_KEY
from nearcast.core.store_names import TERM_KEY
from nearcast.errors import ClusterError, Misplaced
from nearcast.runtime.connection import parse_url
from nearcast.runtime.requester import Requester
from nearcast.runtime.retrying import Pauses

log = logging.getLogger("nearcast.controller")


async def until_checked(url: str) -> None:
    """Return when the server has said that it can be the store, however often it must be asked; raise `Misplaced`."""
    pauses = Pauses()
    while True:
        try:
            return await check_store(url)
        except ClusterError as error:
            log.warning("the store cannot be asked: %s", error)
            await asyncio.sleep(pauses.next_s())


async def check_store(url: str) -> None:
    """Raise `Misplaced` if this is a broker's server; warn if it is one and the store as well."""
    requester = Requester(url)
    try:
        found = await _sign_of_a_broker(requester)
        if not found:
            return
        store_url = await _store_known_to(requester)
        has_led = await requester.ask("EXISTS", TERM_KEY) == 1
    finally:
        await requester.close()
    address, _ = parse_url(url)  # without the password
    advice = f"the store of its cluster is {store_url}" if store_url else "give the URL of the store"
    if has_led:  # refused, a cluster that has run so until now would be left without a controller
        log.warning(
            "--store %s is %s, and a store too: %s; it should be a server of its own", address.url, found, advice
        )
        return
    raise Misplaced(
        f"--store {address.url} is {found}, and no store: {advice}."
        " If this server shall be the store, stop its agent and empty it first (FLUSHALL)"
    )


async def _sign_of_a_broker(requester: Requester) -> str:
    """What shows that the server is a broker's, in words; empty if nothing does, or if we may not look."""
    holder = await requester.ask("HGET", CLAIM_KEY, "holder")
    if isinstance(holder, bytes):
        return f"the server of broker {holder.decode().rpartition(':')[0]}"
    found = await requester.ask("EXISTS", MEMBERS, READY_KEY)
    return "the server of a broker" if isinstance(found, int) and found else ""


async def _store_known_to(requester: Requester) -> str:
    document = await requester.ask("HGET", MEMBERS, "document")
    membership = read_membership(document) if isinstance(document, bytes) else None
    return membership.store_url if membership is not None else ""
