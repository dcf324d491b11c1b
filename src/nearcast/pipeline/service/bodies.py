"""What callers send and get, with the examples that the OpenAPI pages show."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

NUMBER_MAX = 2**63 - 1  # the catalogue's


def _text(value: str) -> str:
    """Text that can be stored and sent: a lone surrogate cannot be encoded, and NUL ends strings in many places."""
    value.encode()  # a UnicodeEncodeError is a ValueError
    if "\0" in value:
        raise ValueError("it contains a NUL character: send text")
    return value


Text = Annotated[str, AfterValidator(_text)]
Number = Annotated[int, Field(ge=1, le=NUMBER_MAX)]
BrokerName = Annotated[
    str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description="The broker's name.", examples=["b1"])
]
ChannelName = Annotated[str, Path(description="The channel's name.", examples=["near_me"])]
SubscriptionId = Annotated[
    str, Path(description="The backend subscription's id.", examples=["near_me-0123456789abcdef"])
]
FeedName = Annotated[str, Path(description="The feed's name.", examples=["emergency_reports"])]
DatasetName = Annotated[str, Path(description="The dataset's name.", examples=["shelters"])]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Problem(BaseModel):
    """A refusal: what is wrong, and what to do."""

    problem: str = Field(examples=["unknown channel near"])
    hint: str = Field(examples=["the channels are: near_me"])


class ChannelProblem(Problem):
    """Why a channel's text is refused, and where; lines and columns count from 1."""

    line: int = Field(examples=[2])
    column: int = Field(examples=[8])


class BrokerBody(_Body):
    url: Text = Field(max_length=2000, description="The URL of its gateway.", examples=["http://10.0.0.4:8080"])


class ChannelBody(_Body):
    text: Text = Field(
        max_length=100_000,
        description="CREATE CHANNEL ...",
        examples=[
            "CREATE CHANNEL near_me(kind STRING, lat DOUBLE, lon DOUBLE) PERIOD 10 SECONDS AS\n"
            "SELECT r.message, r.lat, r.lon FROM NEW emergency_reports AS r\n"
            "WHERE r.kind = :kind AND distance(r.lat, r.lon, :lat, :lon) < 2000"
        ],
    )


_Name = Annotated[Text, Field(max_length=200)]


class Wanted(_Body):
    channel: _Name = Field(examples=["near_me"])
    parameters: dict[_Name, Any] = Field(default={}, examples=[{"kind": "fire", "lat": 33.64, "lon": -117.84}])
    user: _Name = Field(default="", description="The login name: the value of the parameter `user`.", examples=["ann"])


class SubscribeBody(_Body):
    """Requests of many users in one call. Each is checked by itself: see `Wanted`."""

    broker: Text = Field(examples=["b1"])
    wanted: list[Annotated[Any, WithJsonSchema(Wanted.model_json_schema())]]


class MoveBody(_Body):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    source: Text = Field(alias="from", examples=["b1"])
    target: Text = Field(alias="to", examples=["b2"])


class ResultsBody(_Body):
    channel: Text = Field(examples=["near_me"])
    execution: Number = Field(examples=[12])
    subscriptions: list[Text] = Field(examples=[["near_me-0123456789abcdef"]])


class FeedBody(_Body):
    name: Text = Field(examples=["emergency_reports"])
    topic: Text = Field(description="A pattern of topics.", examples=["emergency.*"])
    schema_: Text = Field(
        alias="schema",
        description="The columns, as in CREATE TABLE.",
        examples=["kind STRING NOT NULL, lat DOUBLE, lon DOUBLE, message STRING"],
    )
    format: Text = Field(default="json", description="json or msgpack.", examples=["json"])
    key: Text = Field(default="", description="Keep the newest record per value of this column.", examples=[""])


class FeedChange(_Body):
    add: Text = Field(description="Columns to add; older records have null there.", examples=["severity INT"])
