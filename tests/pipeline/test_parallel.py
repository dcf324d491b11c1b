"""Jobs on Spark give what they give here, in their order."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from nearcast.experiments.epulsar.placements import Town, jobs_for, run_job
from nearcast.experiments.epulsar.topology import zone_topology
from nearcast.experiments.result import run_jobs, silent
from nearcast.pipeline.parallel import run_on_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_an_experiment_has_the_same_figures_on_spark(spark: SparkSession) -> None:
    town = Town(np.array([[0.0, 0.0], [10.0, 10.0]]), np.array([[1.0, 2.0], [8.0, 3.0], [5.0, 9.0]]))
    jobs = jobs_for(zone_topology(3, 0), 0.04, seed=0, placements=110, town=town)
    told: list[str] = []
    found = run_on_spark(spark, run_job, jobs, lambda done, total, what: told.append(f"{done}/{total}"))
    assert found == partial(run_jobs, workers=1)(run_job, jobs, silent)
    assert told == ["0/3", "3/3"]


def test_no_jobs_are_no_outcomes(spark: SparkSession) -> None:
    assert run_on_spark(spark, run_job, [], silent) == []
