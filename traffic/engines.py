"""From a scenario and its source to the engine that plays it."""

from __future__ import annotations

from scenario.models import Scenario
from traffic.background import WithBackground, streams
from traffic.engine import Engine
from traffic.flow_engine import FlowEngine
from traffic.flow_sources import FlowSource
from traffic.player import Player
from traffic.requests import Source


def make_engine(scenario: Scenario, source: Source, *, iperf3_as_flows: bool = False) -> Player:
    """The serving engine, or the one that plays flows; with the background that consists of flows around it.

    `iperf3_as_flows`: there is no iperf3 (a simulation), so its streams become paced flows. Raises InputError.
    """
    engine: Player = FlowEngine(scenario, source.plan) if isinstance(source, FlowSource) else Engine(scenario, source)
    played = streams(scenario, iperf3=iperf3_as_flows)
    return WithBackground(engine, played) if played else engine
