"""The plugin's side of vLLM's OpenAI-compatible server: tenants, sessions over HTTP, and a gate before everything.

strict_json         bodies as JSON that nothing downstream can stumble over
tenants             from an API key to whose data a request may touch
limits              what this server's model, pool and configuration allow
wire                the form of ``POST /v1/memdecay/generate``, for server and client; imports no vLLM
gate, stock_bodies  what a request may ask, decided before vLLM sees it; pure functions of the body
middleware          the gate as ASGI middleware
problems            errors as HTTP answers, and back
endpoint, routes    the routes under /v1/memdecay, attached through vLLM's group of endpoint plugins
launch              vLLM's own server, with all of memdecay's arguments
"""
