"""What each step adds to the sessions: its tokens, and the attention that was measured in it.

step: what was scheduled -> the states' tokens, and what the worker is to measure -> observe: what it measured
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np

from memdecay_adapters.engine.events import BYPASSES, EXPIRED_SESSIONS
from memdecay_adapters.engine.measurement_counts import count_measurement
from memdecay_adapters.engine.norm_schedule import norms_to_measure
from memdecay_adapters.engine.session_turns import SessionTurns
from memdecay_agents.calibration.lifetimes import Lifetimes
from memdecay_agents.errors import MemDecayError
from memdecay_agents.observations import Observation


class StepEvidence(SessionTurns):
    """The steps of one engine. Owned by the scheduler's thread."""

    lifetimes: Lifetimes | None = None
    """Collects attention by region and age where someone asked for it: sums only, no text and no token ids."""

    def step(self, scheduled_tokens: Mapping[str, int]) -> tuple[dict[str, list[int]], dict[str, int], dict[str, int]]:
        """Close the planning of a step.

        Args:
            scheduled_tokens: request id to the tokens that this step computes.

        Returns:
            The pages evicted since the last step, the queries to observe, and the first tokens whose key norms are
            wanted, all by request id.
        """
        self.expire()
        evicted, self._evicted_since_step = self._evicted_since_step, {}
        observe: dict[str, int] = {}
        decoding, prefilling = {}, []
        scheduled = []
        for request_id, tokens in scheduled_tokens.items():
            tracked = self._requests.get(request_id)
            if tracked is None:
                self.count_plain(request_id, tokens)
            else:
                scheduled.append((request_id, tokens, tracked))
        any_due = any(tracked.is_due(tokens, self.config) for _, tokens, tracked in scheduled)
        for request_id, tokens, tracked in scheduled:
            tracked.in_worker = True
            computed = tracked.request.num_computed_tokens + tokens
            generated = int(computed >= tracked.request.num_tokens)
            if not tracked.recall.rerun_until:
                if tokens == generated == 1 and tracked.has_begun:
                    tracked.decoded_steps += 1
                else:
                    state = self._state_of(tracked)
                    state.on_computed(tokens, generated)
                    state.learn(tracked.request.all_token_ids)
                self.live.step(tracked.home.tenant, tracked.hints.agent, tokens, generated)
            elif computed >= tracked.recall.rerun_until:
                tracked.recall.rerun_until = 0  # its positions and its token were counted when they first came
                if tracked.recall.whole:
                    self._state_of(tracked).sound_tokens = computed
            if tracked.repairs or not self.policy.uses_attention:
                continue
            if queries := tracked.queries_to_observe(tokens, self.config, beside_others=any_due):
                observe[request_id] = queries
                if tokens > 1:
                    prefilling.append((request_id, self._state_of(tracked).tokens))
                else:
                    decoding[request_id] = self._state_of(tracked).tokens
        norms = norms_to_measure(decoding, prefilling, self.config) if self.policy.uses_key_norms else {}
        return evicted, observe, norms

    def expire(self) -> float | None:
        """Give up sessions that were idle for too long; returns the seconds until the next one will be."""
        if expired := self.sessions.expired():
            self.give_up(expired, EXPIRED_SESSIONS)
        return self.sessions.seconds_to_next_expiry()

    def observe(
        self, request_id: str, token_index: np.ndarray, mass: np.ndarray, key_norms: np.ndarray | None = None
    ) -> None:
        """Take in measured attention and key norms; see `Observation`. A malformed one is counted, never raised."""
        tracked = self._requests.get(request_id)
        if tracked is None or tracked.state is None or tracked.recall.rerun_until:
            return  # it ended, or was preempted, in the step that measured it, or that is computed again
        try:
            observation = Observation(
                token_index,
                mass,
                represented_queries=tracked.represented_queries,
                decode=tracked.observed_decode,
                key_norms=key_norms,
            )
            tracked.state.observe(observation)
            count_measurement(self.events, tracked.state, observation)
            if self.lifetimes is not None:
                self.lifetimes.add_observation(tracked.state.tokens, observation)
        except MemDecayError as error:
            self.events.note(BYPASSES, error.code, level=logging.ERROR, request=request_id, detail=error)
