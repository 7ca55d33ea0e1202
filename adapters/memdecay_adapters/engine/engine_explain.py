"""`MemDecayEngine.explain`: what the engine holds of a session, and why."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, overload

from memdecay_adapters.engine.explain_sessions import explain
from memdecay_agents.explanation import Explanation, SessionExplanation
from memdecay_agents.sessions import SessionId

if TYPE_CHECKING:
    from memdecay_adapters.engine.inprocess import EngineInternals

T = TypeVar("T")


class Explaining:
    """The part of an engine that answers for what it freed."""

    @abstractmethod
    def run_on_engine_thread(self, function: Callable[[Any, EngineInternals], T]) -> T:
        """Run a function between two steps."""

    @overload
    def explain(self, session: str | SessionId, *, message: int) -> Explanation: ...
    @overload
    def explain(self, session: str | SessionId, *, page: int) -> Explanation: ...
    @overload
    def explain(self, session: str | SessionId, *, token: int) -> Explanation: ...
    @overload
    def explain(self, session: str | SessionId) -> SessionExplanation: ...

    def explain(
        self,
        session: str | SessionId,
        *,
        message: int | None = None,
        page: int | None = None,
        token: int | None = None,
    ) -> Explanation | SessionExplanation:
        """Say what is held of a message, a page or a token, what was freed, when and why, and what would have kept it.

        Args:
            session: its key, as ``response_metadata["memdecay"]["session"]`` and ledger entries give it.
            message: place in the newest prompt, from 0; the answer is the last one, -1.
            page: logical page number.
            token: index in the session.

        Returns:
            The answer; with none of the three one of the whole session, which `save_explanation` writes to a file.

        Raises:
            ExplainError: nothing is known of the session, or it has no such message, page or token.
            HintsError: a key that is none.
        """
        wanted = SessionId.parse(session) if isinstance(session, str) else session
        asked = {
            name: number
            for name, number in (("message", message), ("page", page), ("token", token))
            if number is not None
        }
        found = self.run_on_engine_thread(lambda _, internals: explain(internals.controller, wanted, **asked))
        return found.of(**asked) if asked else found
