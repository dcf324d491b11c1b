"""Publish and subscribe with the typed client.

The program starts its own cluster on this machine. To use a cluster that runs elsewhere, leave that line out and give
`nearcast.connect` the URL of any of its servers.
"""

from __future__ import annotations

import asyncio

import nearcast
from nearcast.testing import LocalCluster

NAMES = ("Ada", "Grace", "Edsger")


async def main() -> None:
    async with await LocalCluster.start(brokers=2) as cluster, nearcast.connect(*cluster.urls.values()) as client:
        print("brokers:", ", ".join(sorted(client.brokers)))
        subscription = await client.subscribe("greetings")  # attached: nothing acknowledged from here on is missed
        for name in NAMES:
            receivers = await client.publish("greetings", f"hello {name}")
            print(f"published to {receivers} subscriber")
        missing = len(NAMES)
        async for event in subscription:
            match event:
                case nearcast.Message(payload=payload, sequence=sequence):
                    print(f"got #{sequence}: {payload.decode()}")
                    missing -= 1
                case nearcast.Gap(first=first, last=last):
                    print(f"messages {first} to {last} will not arrive")
                    missing -= event.count
                case nearcast.Interrupted(reason=reason):
                    print(f"messages may be missing: {reason}")
            if not missing:
                break


asyncio.run(main())
