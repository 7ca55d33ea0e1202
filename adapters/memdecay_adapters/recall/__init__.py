"""Retrieval heads of a model: shipped, kept in the user's cache, or found by planted facts."""

from memdecay_adapters.recall.fingerprint import fingerprint_of
from memdecay_adapters.recall.heads_for import heads_for

__all__ = ["fingerprint_of", "heads_for"]
