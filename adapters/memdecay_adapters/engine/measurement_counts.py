"""What a measurement of attention did, as counters: that it was taken, and which regions it refreshed."""

from __future__ import annotations

import numpy as np

from memdecay_adapters.engine.events import MEASUREMENTS, REFRESHED_TOKENS, EngineEvents
from memdecay_agents.observations import Observation
from memdecay_agents.session_state import SessionState


def count_measurement(events: EngineEvents, state: SessionState, observation: Observation) -> None:
    """Count a measurement that the session has taken in.

    Args:
        events: of the engine.
        state: the session.
        observation: what was measured; its tokens exist.
    """
    events.count(MEASUREMENTS, state.agent)
    tokens, mass = state.tokens, observation.mass
    refreshed = tokens.refresh.refreshed(mass, mass * np.float32(mass.size))
    regions = tokens.region[observation.token_index[refreshed]]
    for region, count in enumerate(np.bincount(regions).tolist()):
        if count:
            events.count(REFRESHED_TOKENS, state.agent, tokens.table.names[region], by=count)
