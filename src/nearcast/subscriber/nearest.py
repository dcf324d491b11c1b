"""Where a user should log in: it measures how far some gateways are, and asks the cluster, which knows the others."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Mapping

import httpx

from nearcast.errors import ConnectFailed, Refused
from nearcast.subscriber import transport as carriers
from nearcast.subscriber.transport import trust

MEASURED_MAX = 8  # gateways: how far the others are follows from how far brokers are from each other
ASK_MAX = 3  # times: an estimate that is chosen is measured, and may turn out to be wrong
TRIES = 3  # of which the shortest counts; one more before them opens the connection
MEASURE_S = 2.0  # a gateway that takes longer is not near

log = logging.getLogger("nearcast.subscriber")


async def nearest(url: str, user: str) -> str:
    """The URL of the gateway where the user should log in; this one, if that cannot be found out."""
    try:
        round_trips_s = await measured(await carriers.gateways(url))
        for _ in range(ASK_MAX):
            broker, found = await carriers.request_broker(url, user, round_trips_s=round_trips_s)
            if broker in round_trips_s:
                break
            round_trips_s |= await measured({broker: found})
    except (ConnectFailed, Refused, ValueError) as error:
        log.warning("the nearest gateway is not known: %s", error)
        return url
    return found.rstrip("/")


async def measured(gateways: Mapping[str, str]) -> dict[str, float]:
    """The round trips to some of these gateways, by broker. One that does not answer in time is left out."""
    some = random.sample(sorted(gateways), min(MEASURED_MAX, len(gateways)))
    async with httpx.AsyncClient(timeout=MEASURE_S, trust_env=False, verify=trust()) as http:
        found = await asyncio.gather(*(_round_trip_s(http, gateways[broker]) for broker in some))
    return {broker: one_s for broker, one_s in zip(some, found, strict=True) if one_s is not None}


async def _round_trip_s(http: httpx.AsyncClient, url: str) -> float | None:
    """Over one connection, which the client keeps."""
    samples = []
    try:
        async with asyncio.timeout(MEASURE_S):
            for _ in range(1 + TRIES):
                begun_s = time.monotonic()
                (await http.get(f"{url}/health")).raise_for_status()
                samples.append(time.monotonic() - begun_s)
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
        log.info("%s is not measured: %s", url, str(error) or type(error).__name__)
    return min(samples[1:], default=None)
