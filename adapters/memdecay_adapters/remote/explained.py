"""A server's explanations, read back."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

from memdecay_agents.errors import RemoteError
from memdecay_agents.explanation import Explanation, SessionExplanation


def read_told(told: object) -> Explanation | SessionExplanation:
    """What ``GET /v1/memdecay/explain`` answered.

    Raises:
        RemoteError: it is neither kind of explanation.
    """
    if isinstance(told, Mapping):
        try:
            if "explanation" in told:
                return Explanation.model_validate(told["explanation"])
            return SessionExplanation.model_validate(told.get("session_explanation"))
        except ValidationError as error:
            why = f"{error.error_count()} of its fields are unknown or wrong"
    else:
        why = "it is no JSON object"
    raise RemoteError(
        where="/v1/memdecay/explain",
        rule=f"its answer cannot be read: {why}",
        remedy="Use the same version of memdecay-agents on both sides.",
    )
