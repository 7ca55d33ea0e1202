"""Who a KV state belongs to. All state is keyed by session, so that one agent never reads another's.

A key joins the four fields by "/"; "/" and "%" inside a field are written %2F and %25.
"""

from __future__ import annotations

from typing import NamedTuple

from memdecay_agents.errors import HintsError


def _escape(field: str) -> str:
    return field.replace("%", "%25").replace("/", "%2F")


def _unescape(field: str) -> str:
    return field.replace("%2F", "/").replace("%25", "%")


class SessionId(NamedTuple):
    """Tenant, thread, agent path and branch of one session: what an agent computes, its later turns reuse."""

    tenant: str
    thread_id: str
    agent_path: str
    branch: str = ""

    def key(self) -> str:
        """The whole identity as one string; ``parse`` reads it back."""
        return "/".join(_escape(field) for field in self)

    @classmethod
    def parse(cls, key: str) -> SessionId:
        """Read what ``key`` wrote.

        Raises:
            HintsError: not four fields.
        """
        fields = key.split("/")
        if len(fields) != 4:
            raise HintsError(
                where=f"session key {key!r}",
                rule=f"{len(fields)} fields instead of tenant/thread/agent/branch",
                remedy="Make keys with SessionId(...).key().",
            )
        return cls(*(_unescape(field) for field in fields))

    @property
    def hint_session(self) -> str:
        """Thread and branch as the ``session`` field of request hints; a plain thread id stays readable."""
        thread = _escape(self.thread_id)
        return f"{thread}/{_escape(self.branch)}" if self.branch else thread

    @classmethod
    def from_hints(cls, tenant: str, session: str, agent: str) -> SessionId:
        """The identity that a request's hints name: ``session`` is what ``hint_session`` wrote.

        Raises:
            HintsError: ``session`` holds more than one "/".
        """
        fields = session.split("/")
        if len(fields) > 2:
            raise HintsError(
                where="hints.session",
                rule=f"{session!r} has {len(fields)} fields instead of thread or thread/branch",
                remedy="Write it with SessionId(...).hint_session, which escapes '/'.",
            )
        return cls(tenant, _unescape(fields[0]), agent, _unescape(fields[1]) if len(fields) == 2 else "")
