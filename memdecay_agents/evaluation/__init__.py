"""Evaluation: what an agent still knows under a budget. Pure parts; no model, no engine.

    synthetic, trace files -> traces -> (tokenised by the adapters) -> recording (attention of one full-cache pass)
        -> replay (the product's own session state, policy and plan) -> cells -> report, figures
        -> verify (the real engine, in the adapters)                 -> cells, replay agreement

A fact *survives* when no page that holds one of its tokens was evicted before the fact is needed.
"""
