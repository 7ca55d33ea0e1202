"""Sessions between their turns: what is kept of an agent's memory while nobody computes on it.

    turn 1 ends:    row  [ 7  .  3  9  . 12 ]   tokens  t0 ........ t91   (. evicted)
    turn 2 comes:   prompt shares t0 .. t80  ->  adopt the row up to token 80, compute the rest

A retained session owns references on its pages; they are the pool's again when the session is closed, takes
too long to return, is pushed out by a newer prompt of the same session, or when a running request needs room
(least recently used first). Nothing here computes or copies.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from memdecay_adapters.engine.block_rows import Block, held_pages
from memdecay_agents.hints import RequestHints
from memdecay_agents.session_state import SessionState
from memdecay_agents.sessions import SessionId

SLOTS_PER_SESSION = 2
"""Different prompts that one agent may keep: a node that sends two kinds of prompts needs both."""

TokenIds = npt.NDArray[np.int64]


@dataclass(eq=False)
class RetainedSession:
    """An idle session and its pages."""

    home: SessionId
    """Whose it is; the state's own id also says which slot."""
    state: SessionState
    token_ids: TokenIds
    """int64 ``[computed]``: the tokens whose keys and values were computed, evicted ones included."""
    clean_pages: int | None
    """Leading pages that saw their whole context; None: all of them."""
    published_pages: int
    """Leading pages that the prefix cache already knows."""
    prompt_tokens: int
    """Length of its last turn's prompt; what follows was generated."""
    blocks: list[Block] = field(default_factory=list)
    """The row in logical order; evicted pages hold the null block."""
    idle_since_seconds: float = 0.0
    hints: RequestHints | None = None
    """Of its last turn."""
    repair_tried: bool = False
    """Whether a repair was tried since its last turn."""

    @property
    def held_pages(self) -> list[int]:
        """Logical pages held, ascending."""
        return held_pages(self.blocks)

    def clean_pages_at(self, tokens: int, page_size_tokens: int) -> int | None:
        """``clean_pages`` once the session is rewound to ``tokens``: what is computed next sees the holes that remain.

        None where none remains and all that is kept saw its whole context: then what comes next does, too. A page
        that came back closes its hole, but what was computed while it was away stays what it is.
        """
        if self.clean_pages is None:
            return None
        row = self.blocks[: -(-tokens // page_size_tokens)]
        if tokens <= self.clean_pages * page_size_tokens and not any(block.is_null for block in row):
            return None
        return min(self.clean_pages, tokens // page_size_tokens)

    def repair_from(self, last_tokens: int, page_size_tokens: int) -> int:
        """The first token that a repair computes again; the number of tokens: there is nothing to repair.

        Not what saw its whole context, when it was first computed or in a repair before.

        Args:
            last_tokens: the most that is computed again.
            page_size_tokens: tokens in a page.
        """
        n_tokens = len(self.token_ids)
        if self.clean_pages is None:
            return n_tokens
        sound = max(self.clean_pages * page_size_tokens, self.state.sound_tokens)
        return min(max(n_tokens - last_tokens, sound), n_tokens)


class Match(NamedTuple):
    """A retained session that a prompt continues."""

    session: RetainedSession
    tokens: int
    """Leading tokens of the prompt that need not be computed again."""
    shared: int
    """Leading tokens that prompt and history have in common; the last of them may have to be computed again."""

    @property
    def diverges(self) -> bool:
        """Whether the prompt leaves out, or changes, tokens of the session's history."""
        return self.shared < len(self.session.token_ids)

    @property
    def edits_prompt(self) -> bool:
        """Whether it does so within what the last turn was asked, not only in what it answered."""
        return self.shared < self.session.prompt_tokens


class SessionStore:
    """Idle sessions, least recently used first.

    Args:
        page_size_tokens: tokens in a page.
        idle_limit_seconds: a session that is idle for longer is given up; None: never for that reason.
        max_sessions: idle sessions kept at most.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        page_size_tokens: int,
        idle_limit_seconds: float | None,
        max_sessions: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.page_size_tokens = page_size_tokens
        self.idle_limit_seconds = idle_limit_seconds
        self.max_sessions = max_sessions
        self._clock = clock
        self._idle: OrderedDict[int, RetainedSession] = OrderedDict()  # by id(), oldest first

    def __len__(self) -> int:
        return len(self._idle)

    def __iter__(self) -> Iterator[RetainedSession]:
        return iter(list(self._idle.values()))

    def __contains__(self, session: object) -> bool:
        return id(session) in self._idle

    def of(self, session_id: SessionId) -> list[RetainedSession]:
        """The idle slots of one session, least recently used first."""
        return [session for session in self._idle.values() if session.home == session_id]

    def match(self, session_id: SessionId, prompt: Sequence[int], least_tokens: int) -> Match | None:
        """Find the slot that shares the longest prefix with a prompt; changes nothing.

        Args:
            session_id: whose slots to look at.
            prompt: token ids; at least the last one is always computed.
            least_tokens: a shorter common prefix that is not the whole history is another prompt, no continuation.
        """
        ids = np.asarray(prompt, dtype=np.int64)
        best: Match | None = None
        for session in self.of(session_id):
            shared = common_prefix(session.token_ids, ids)
            tokens = self.usable(session, min(shared, len(ids) - 1))
            enough = 1 if shared == len(session.token_ids) else max(least_tokens, 1)  # all of it is an extension
            if tokens >= enough and (best is None or tokens >= best.tokens):
                best = Match(session, tokens, shared)
        return best

    def usable(self, session: RetainedSession, shared: int) -> int:
        """How much of a shared prefix can be continued without writing into a page that is not ours alone."""
        page, offset = divmod(shared, self.page_size_tokens)
        if offset == 0 or shared == len(session.token_ids):
            return shared
        block = session.blocks[page]
        is_private = not block.is_null and block.ref_cnt == 1 and getattr(block, "block_hash", None) is None
        return shared if is_private else page * self.page_size_tokens

    def take(self, session: RetainedSession) -> RetainedSession:
        """Remove a session: from now on the caller owns its pages."""
        return self._idle.pop(id(session))

    def slot_for(self, session_id: SessionId) -> tuple[SessionId, RetainedSession | None]:
        """Where a prompt that continues nothing goes: a free slot's id, and the slot that makes way for it."""
        slots = self.of(session_id)
        names = [session_id, *(slot_id(session_id, number) for number in range(2, SLOTS_PER_SESSION + 1))]
        taken = {slot.state.session_id for slot in slots}
        free = next((name for name in names if name not in taken), None)
        if free is not None:
            return free, None
        return slots[0].state.session_id, self.take(slots[0])

    def put(self, session: RetainedSession) -> list[RetainedSession]:
        """Keep a session; returns those that had to make way, whose pages the caller frees.

        One that was only repaired has been idle since its turn ended, and takes its old place.
        """
        session.idle_since_seconds = session.idle_since_seconds if session.repair_tried else self._clock()
        self._idle[id(session)] = session
        if session.repair_tried:
            self._idle = OrderedDict(sorted(self._idle.items(), key=lambda item: item[1].idle_since_seconds))
        surplus = max(0, len(self._idle) - self.max_sessions)
        return [self.take(other) for other in list(self)[:surplus]]

    def idle_seconds(self, session: RetainedSession) -> float:
        """How long a session has been idle."""
        return self._clock() - session.idle_since_seconds

    def expired(self) -> list[RetainedSession]:
        """Remove and return the sessions that were idle for too long."""
        if self.idle_limit_seconds is None:
            return []
        limit = self._clock() - self.idle_limit_seconds
        return [self.take(session) for session in self if session.idle_since_seconds < limit]

    def seconds_to_next_expiry(self) -> float | None:
        """How long until a session has been idle for too long; None: none ever will."""
        oldest = min((session.idle_since_seconds for session in self), default=None)
        if oldest is None or self.idle_limit_seconds is None:
            return None
        return max(oldest + self.idle_limit_seconds - self._clock(), 0.0)

    def oldest(self, spared: RetainedSession | None = None) -> RetainedSession | None:
        """Remove and return the least recently used session, but not ``spared``."""
        session = next((session for session in self if session is not spared), None)
        return None if session is None else self.take(session)


def slot_id(session_id: SessionId, number: int) -> SessionId:
    """The id of a session's further slot, for the ledger."""
    return session_id._replace(branch=f"{session_id.branch}~{number}")


def common_prefix(a: TokenIds, b: TokenIds) -> int:
    """Length of the longest common prefix of two int64 vectors."""
    length = min(len(a), len(b))
    different = np.flatnonzero(a[:length] != b[:length])
    return int(different[0]) if different.size else length
