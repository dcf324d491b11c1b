"""The whole catalogue of a data cluster's folder, and the changes that concern several of its parts."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from nearcast.pipeline.catalog.brokers import Brokers
from nearcast.pipeline.catalog.channels import Channels, StoredChannel
from nearcast.pipeline.catalog.database import Database
from nearcast.pipeline.catalog.datasets import DatasetCatalog
from nearcast.pipeline.catalog.executions import Execution, Executions, Measures
from nearcast.pipeline.catalog.feeds import FeedCatalog
from nearcast.pipeline.catalog.limits import CatalogLimits
from nearcast.pipeline.catalog.outcomes import Outcomes
from nearcast.pipeline.catalog.refusals import Conflict
from nearcast.pipeline.catalog.running_time import RunningTime
from nearcast.pipeline.catalog.subscriptions import Subscriptions
from nearcast.pipeline.datasets import Datasets
from nearcast.pipeline.io import Warehouse


class Made(StrEnum):
    """What became of a channel that somebody created."""

    CREATED = "created"
    REPLACED = "replaced"
    UNCHANGED = "unchanged"


class Catalog:
    """Opens the folder's catalogue; one process has one."""

    def __init__(self, folder: Path, limits: CatalogLimits | None = None) -> None:
        most = limits or CatalogLimits()
        self.warehouse = Warehouse(folder)
        self.database = Database(self.warehouse.catalog)
        self.clock = RunningTime(self.database)
        self.datasets = Datasets(self.database, self.warehouse, self.clock)
        self.brokers = Brokers(self.database, most.brokers, self.clock)
        self.channels = Channels(self.database, most.channels)
        self.subscriptions = Subscriptions(self.database, self.channels, most.subscriptions)
        self.executions = Executions(self.database, self.channels, self.clock)
        self.outcomes = Outcomes(self.database, self.channels, self.clock)
        self.feeds = FeedCatalog(self.database)
        self._batches = DatasetCatalog(self.database)

    def create_channel(self, channel: StoredChannel, *, replaces: bool = False) -> Made:
        """It sees records that are committed from now on, or goes on where the one that it replaces was."""
        with self.database.transaction():
            if replaces and self.channels.exists(channel.name):
                return Made.REPLACED if self._replace(channel) else Made.UNCHANGED
            positions = {name: self.datasets.position(name) for name in channel.new_datasets}
            return Made.CREATED if self.channels.create(channel, positions) else Made.UNCHANGED

    def _replace(self, channel: StoredChannel) -> bool:
        """Another text for the same subscriptions, those too that failed the old one; False if it is the same text.

        An execution that is open ends without results: whoever runs it will find nothing to commit, and the records it
        was to read are for the next one.
        """
        there = self.channels.get(channel.name)
        if there.text == channel.text:
            return False
        if there.parameters != channel.parameters:
            problem = f"channel {channel.name} has the parameters {_listed(there)}, the new text {_listed(channel)}"
            raise Conflict(problem, "keep them, because subscriptions have values for them, or choose another name")
        read = self.channels.positions(channel.name)
        for execution in self.executions.open(channel.name):
            read |= {name: after for name, (after, _) in execution.inputs.new.items()}
            self.executions.commit(execution, {}, Measures(problem="the channel was replaced"))
        self.subscriptions.try_again(channel.name)
        new = {name: read.get(name, self.datasets.position(name)) for name in channel.new_datasets}
        self.channels.replace(channel, new)
        return True

    def drop_channel(self, name: str) -> None:
        with self.database.transaction():
            if not self.channels.exists(name):
                self.channels.get(name)  # raises, and says what there is
            self.subscriptions.drop_channel(name)
            self.executions.drop_channel(name)
            self.channels.drop(name)

    def drop_broker(self, name: str) -> None:
        with self.database.transaction():
            self.subscriptions.drop_broker(name)
            self.brokers.drop(name)

    def drop_dataset(self, name: str) -> None:
        """Unless a channel reads it or a feed fills it."""
        with self.database.transaction():
            if not self.datasets.exists(name):
                self.datasets.describe(name)  # raises, and says what there is
            readers = self.channels.readers(name)
            if readers:
                raise Conflict(f"dataset {name} is read by {', '.join(readers)}", "drop those channels first")
            if self.feeds.find(name) is not None:
                raise Conflict(f"dataset {name} is filled by a feed", f"drop it first: nearcast feed drop {name}")
            self.datasets.drop(name)

    def damaged(self) -> list[str]:
        """Channels and datasets that cannot be read, each with the reason."""
        return [*self.channels.damaged(), *self.datasets.damaged()]

    def next_execution(self, channel: StoredChannel) -> Execution | None:
        """The execution of a channel to run now, noted; None if it has nothing to do."""
        with self.database.transaction():
            if not self.channels.has(channel):
                return None  # dropped
            read = (*channel.new_datasets, *channel.whole_datasets)
            return self.executions.next(channel, {name: self.datasets.position(name) for name in read})

    def set_aside(self, execution: Execution, problems: Mapping[str, str]) -> bool:
        """Leave these subscriptions out from now on; False if the execution that they fail is not open any more."""
        with self.database.transaction():
            if all(execution.number != there.number for there in self.executions.open(execution.channel)):
                return False
            self.subscriptions.set_aside(execution.channel, execution.version, problems)
            return True

    def new_rows(self, execution: Execution) -> dict[str, int]:
        """How many records an execution reads of each NEW dataset, before the newest of each key are taken."""
        return {
            name: sum(batch.rows for batch in self._batches.segments(name, upto) if batch.last > after)
            for name, (after, upto) in execution.inputs.new.items()
        }

    def newest_s(self, execution: Execution) -> float | None:
        """When the newest record that an execution reads as new was committed to its dataset, by `clock`."""
        return max(
            (
                batch.made_s
                for name, (after, upto) in execution.inputs.new.items()
                for batch in self._batches.segments(name, upto)
                if batch.last > after
            ),
            default=None,
        )

    def close(self) -> None:
        self.database.close()


def _listed(channel: StoredChannel) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in channel.parameters.items()) or "none"
