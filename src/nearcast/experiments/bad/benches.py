"""The two worlds of the paper's experiments: its prototype (section 6.1) and its simulation (section 6.2).

The paper gives alpha and beta for the simulation alone, and neither gamma nor theta. Here gamma is the policy's own,
and theta is beta in both. For the prototype, beta is about a quarter of the mean load that a broker has once everybody
has subscribed: below that the first few subscribers alone would make brokers look unlike. Its alpha is 0.1: a random
placement of 400 subscribers is at about that, so that there is something to do, as in figure 6.
"""

from __future__ import annotations

import msgspec

from nearcast.errors import UsageError
from nearcast.flow.gateway_world import GatewayWorld
from nearcast.flow.gateways import GatewaySettings
from nearcast.policies.multistage import MultistageConfig
from nearcast.workloads.emergency import EmergencySettings, emergency_world
from nearcast.workloads.emergency_results import gateway_world
from nearcast.workloads.emergency_scale import ScaleSettings, scale_world
from nearcast.workloads.emergency_scenario import SUBSCRIBE_S


class Unit(msgspec.Struct, frozen=True):
    """What loads are shown in."""

    name: str
    bytes_per_s: float

    def text(self, load_bytes_per_s: float) -> str:
        return f"{load_bytes_per_s / self.bytes_per_s:,.0f} {self.name}"


class Prototype(msgspec.Struct, frozen=True, kw_only=True):
    emergency: EmergencySettings = EmergencySettings()
    brokers: int = 5  # 6.1.2
    alpha: float = 0.10
    beta_bytes_per_s: float = 20e3
    unit: Unit = Unit("kB/s", 1e3)

    def __post_init__(self) -> None:
        if self.brokers < 2:
            raise UsageError("loads of one broker cannot differ: use 2 or more")

    @property
    def subscribed_s(self) -> int:
        """From then on everybody has subscribed."""
        return int(SUBSCRIBE_S[1] / self.emergency.speed)

    def world(self, seed: int) -> GatewayWorld:
        return gateway_world(emergency_world(self.emergency, seed), self.brokers)


class Simulation(msgspec.Struct, frozen=True, kw_only=True):
    scale: ScaleSettings = ScaleSettings()
    alpha: float = 0.15  # 6.2.2
    beta_bytes_per_s: float = 300e6  # 6.2.2
    unit: Unit = Unit("MB/s", 1e6)

    @property
    def subscribed_s(self) -> int:
        return self.scale.subscribe_s

    def world(self, seed: int) -> GatewayWorld:
        return scale_world(self.scale, seed)


Bench = Prototype | Simulation


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """What figures depend on, printed beside them."""

    world: Bench
    gateways: GatewaySettings
    gamma: float
    theta_bytes_per_s: float


def conditions_of(bench: Bench) -> Conditions:
    return Conditions(
        world=bench,
        gateways=GatewaySettings(),
        gamma=MultistageConfig().gamma,
        theta_bytes_per_s=bench.beta_bytes_per_s,
    )
