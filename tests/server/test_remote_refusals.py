"""Whom and what a remote client refuses: strange servers, other tokenizers, other models, bad fields."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from memdecay_adapters import ChatMemDecayRemote
from memdecay_adapters.remote import RemoteEngine, RemoteSampling
from memdecay_adapters.server.tenants import Tenants
from memdecay_adapters.server.wire import PROTOCOL
from memdecay_agents import MemDecayConfig
from memdecay_agents.errors import ConfigError, EngineError, HintsError, RemoteError, UnsupportedError
from memdecay_agents.hints import RequestHints
from memdecay_agents.spans import Span
from tests.server.fake_server import KEY, FakeBackend, connection_threads

SAMPLING = RemoteSampling(max_tokens=4)


# ---- servers and their answers


def engine_of(handler: Any, **options: Any) -> RemoteEngine:
    return RemoteEngine("http://server/v1/", transport=httpx.MockTransport(handler), **options)


def answering(status: int, body: Any) -> Any:
    return lambda request: httpx.Response(status, json=body)


@pytest.mark.parametrize(
    ("handler", "kind", "message"),
    [
        (answering(404, {"error": {"message": "Not Found"}}), UnsupportedError, "does not run the memdecay plugin"),
        (
            answering(200, {"protocol": PROTOCOL + 1}),
            UnsupportedError,
            f"version {PROTOCOL + 1} of our protocol, not {PROTOCOL}",
        ),
        (answering(200, ["what"]), UnsupportedError, "version None"),
        (answering(401, {"error": "Unauthorized"}), RemoteError, "refuses the API key: Unauthorized.*api_key"),
        (answering(500, {}), RemoteError, "HTTP 500"),
        (lambda request: httpx.Response(200, text="<html>"), RemoteError, "HTTP 200"),
    ],
)  # fmt: skip
def test_a_server_that_is_none_of_ours_is_refused(handler: Any, kind: type[Exception], message: str) -> None:
    before = connection_threads()
    with pytest.raises(kind, match=message):
        engine_of(handler)
    assert connection_threads() <= before, "a refused server leaves no thread"


def test_nobody_there_is_said() -> None:
    model = ChatMemDecayRemote(base_url="http://127.0.0.1:9", tokenizer="x")
    with pytest.raises(RemoteError, match=r"http://127.0.0.1:9: it cannot be reached"):
        model.invoke("hi")
    with pytest.raises(RemoteError, match="cannot be reached"):
        asyncio.run(model.ainvoke("hi"))


def test_another_key_is_another_tenant(url: str) -> None:
    # the fake server has no authentication in front: vLLM's answers 401 to a key that it does not know
    with RemoteEngine(url, api_key="another key") as stranger:
        assert stranger.sessions()[0].agent != Tenants([KEY], b"secret").of(f"Bearer {KEY}")


def test_a_tokenizer_that_gives_other_ids_is_refused(url: str, backend: FakeBackend, tokenizer: Any) -> None:
    class Other:
        def __call__(self, text: str, **options: Any) -> Any:
            return tokenizer(text.upper(), **options)

        def get_vocab(self) -> Any:
            return tokenizer.get_vocab()

    with (
        RemoteEngine(url, api_key=KEY, tokenizer=Other()) as engine,
        pytest.raises(ConfigError, match="other token ids"),
    ):
        engine.tokenizer  # noqa: B018
    with (
        RemoteEngine(url, api_key=KEY, tokenizer="/no/such/folder") as engine,
        pytest.raises(Exception, match="folder"),
    ):
        engine.tokenizer  # noqa: B018


def test_an_answer_that_is_no_event_of_ours_ends_the_call(engine: RemoteEngine, tokenizer: Any) -> None:
    info = engine.info

    def handler(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json=info)
        return httpx.Response(200, text='data: {"text": "a"}\n\n')

    with engine_of(handler, tokenizer=tokenizer) as strange, pytest.raises(RemoteError, match="cannot be read"):
        strange.generate([1], SAMPLING)


def test_an_answer_that_ends_early_ends_the_call(engine: RemoteEngine) -> None:
    info = engine.info

    def handler(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json=info)
        return httpx.Response(200, text='data: {"text": "a", "token_ids": [1], "logprobs": null}\n\n')

    with engine_of(handler) as strange, pytest.raises(RemoteError, match="broke off"):
        strange.generate([1], SAMPLING)


def test_another_model_than_the_servers_is_refused(url: str, tokenizer: Any) -> None:
    model = ChatMemDecayRemote(base_url=url, api_key=SecretStr(KEY), tokenizer=tokenizer, model="bigger")
    with pytest.raises(UnsupportedError, match=r"'bigger'.*holds 'fake'"):
        model.invoke("hi")


# ---- the client itself


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"config": MemDecayConfig()}, "config.*the server decides"),
        ({"engine_args": {"dtype": "float32"}}, "engine_args"),
        ({"tenant": "other"}, "the tenant follows from api_key"),
        ({"base_url": "nonsense"}, "no address of a server.*http://127"),
        ({"base_url": "localhost:8000"}, "no address"),
        ({"base_url": "http:///v1"}, "no address"),
    ],
)
def test_what_the_server_decides_is_no_field_of_the_client(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ChatMemDecayRemote(**fields)


def test_models_with_one_address_share_a_connection(url: str, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMDECAY_API_KEY", KEY)
    url += "/v1"  # an address that no other test has used
    one = ChatMemDecayRemote(base_url=url, tokenizer=tokenizer)
    assert one.model_name == "remote", "nothing is asked before the first call"
    assert one.get_engine() is ChatMemDecayRemote(base_url=url, tokenizer=tokenizer, default_budget=64).get_engine()
    assert one.model_name == "fake"
    assert one.get_engine() is not ChatMemDecayRemote(base_url=url, api_key="k", tokenizer=tokenizer).get_engine()
    one.get_engine().close()
    assert not one.get_engine().closed, "a closed connection is opened anew"


def test_keys_stay_out_of_what_is_shown() -> None:
    model = ChatMemDecayRemote(api_key="very secret", base_url="http://somewhere")
    assert "very secret" not in repr(model)
    assert "very secret" not in str(model._identifying_params)
    assert model._identifying_params["base_url"] == "http://somewhere"


def test_a_closed_engine_and_one_of_another_process_refuse(
    engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(EngineError, match="forked"):
            engine.submit([1], SAMPLING)
        engine.close()
    assert engine.generate([1], SAMPLING, RequestHints()).text == "Hello there"
    engine.close()
    engine.close()
    assert engine.closed
    with pytest.raises(EngineError, match="closed"):
        engine.submit([1], SAMPLING)


def test_hints_that_are_too_large_are_refused_before_they_are_sent(engine: RemoteEngine) -> None:
    spans = tuple(Span(i, i + 1, "x" * 50 + str(i)) for i in range(2000))
    with pytest.raises(HintsError, match="65536"):
        engine.submit([1] * 2000, SAMPLING, RequestHints.model_construct(spans=spans))
