"""`wrap` and the middleware on every kind of LangGraph graph: the same results, and the settings where they belong."""
