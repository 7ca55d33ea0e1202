"""The gate: what it refuses and why, what it lets pass, and 10,000 payloads that nobody should send."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memdecay_adapters.engine.controller import EvictionController
from memdecay_adapters.engine.events import BYPASSES
from memdecay_adapters.engine.settings import EngineSettings
from memdecay_adapters.server.gate import check_body, check_call, refuse_route
from memdecay_adapters.server.strict_json import MAX_DEPTH, parse_json, parse_object
from memdecay_adapters.server.tenants import OPEN_TENANT, Tenants
from memdecay_adapters.server.wire import GENERATE
from memdecay_agents.errors import BudgetError, HintsError, MemDecayError, PayloadError, RegionError, SpanError
from memdecay_agents.hints import RequestHints
from memdecay_agents.sessions import SessionId
from tests.server.hostile import SAMPLING, nested, payloads
from tests.server.limits_for_tests import LIMITS, MINE

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
IDS = list(range(3, 43))
SPANS = [[0, 10, "system", 0], [10, 40, "user", 0]]


def call(**changes: Any) -> bytes:
    body = {"prompt_token_ids": IDS, "sampling": {"max_tokens": 4}, "hints": {"session": "t", "spans": SPANS}}
    return json.dumps({**body, **changes}).encode()


def chat(transfer: Any, **fields: Any) -> bytes:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "kv_transfer_params": transfer}
    return json.dumps({**body, **fields}).encode()


def passed(path: str, body: bytes, tenant: str = MINE) -> dict[str, Any]:
    return dict(json.loads(check_body(path, body, tenant, LIMITS)))


# ---- JSON


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "no JSON"),
        (b"{", "no JSON"),
        (b"\xff\xfe{}", "no JSON"),
        (b"[1]", "it is a list"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "Infinity"),
        (b'{"a": 1e999}', "beyond double precision"),
        (b'{"a": 18446744073709551616}', "beyond 64 bits"),
        (b'{"a": ' + b"9" * 5000 + b"}", "beyond 64 bits"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b"[" * 200_000, "deeper than 64"),
        (json.dumps(nested(MAX_DEPTH + 2)).encode(), "deeper than 64"),
    ],
)
def test_json_that_others_would_stumble_over_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(PayloadError, match=message):
        parse_object(body)


def test_json_as_deep_as_allowed_and_no_deeper() -> None:
    assert parse_json(json.dumps(nested(MAX_DEPTH)).encode()) == nested(MAX_DEPTH)
    with pytest.raises(PayloadError):
        parse_json(json.dumps(nested(MAX_DEPTH + 1)).encode())


@settings(max_examples=60)
@given(
    st.dictionaries(
        st.text(),
        st.recursive(
            st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text()
            | st.floats(allow_nan=False, allow_infinity=False),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
            max_leaves=20,
        ),
    )
)  # fmt: skip
def test_all_other_json_is_read_as_it_is(value: dict[str, Any]) -> None:
    assert parse_object(json.dumps(value).encode()) == value
    assert parse_object(json.dumps(value, ensure_ascii=False).encode()) == value


# ---- tenants


def test_a_tenant_follows_from_the_key_and_from_nothing_else() -> None:
    tenants = Tenants(["one", "two"], b"secret")
    one, two = tenants.of("Bearer one"), tenants.of("bearer two")
    assert len({one, two, OPEN_TENANT, Tenants(["one"], b"other secret").of("Bearer one")}) == 4
    assert tenants.of("BEARER one") == one == Tenants(["one"], b"secret").of("Bearer one")
    assert "one" not in one
    assert Tenants([]).of("Bearer one") == Tenants([]).of(None) == OPEN_TENANT


def test_two_servers_draw_secrets_of_their_own_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEMDECAY_TENANT_SECRET", raising=False)
    assert Tenants(["one"]).of("Bearer one") != Tenants(["one"]).of("Bearer one")
    monkeypatch.setenv("MEMDECAY_TENANT_SECRET", "told")
    assert Tenants(["one"]).of("Bearer one") == Tenants(["one"]).of("Bearer one")


@pytest.mark.parametrize("tenant", ["other", "key-" + "1" * 32, "", MINE + " "])
def test_nobody_names_another_tenant(tenant: str) -> None:
    hints = {"tenant": tenant, "session": "t", "spans": SPANS}
    with pytest.raises(HintsError, match="not this client's"):
        check_call(call(hints=hints), MINE, LIMITS)
    with pytest.raises(HintsError, match="not this client's"):
        check_body(CHAT, chat({"memdecay": hints, "prompt_token_ids": IDS}), MINE, LIMITS)


@pytest.mark.parametrize("tenant", [OPEN_TENANT, MINE])
def test_whoever_names_nobody_or_himself_gets_his_own(tenant: str) -> None:
    hints = {"tenant": tenant, "session": "t/branch", "agent": "a", "spans": SPANS}
    assert check_call(call(hints=hints), MINE, LIMITS).hints.session_id == SessionId(MINE, "t", "a", "branch")
    sent = passed(CHAT, chat({"memdecay": hints, "prompt_token_ids": IDS}))
    assert sent["kv_transfer_params"]["memdecay"]["tenant"] == MINE
    assert sent["kv_transfer_params"]["prompt_token_ids"] == IDS


def test_tenants_find_no_cached_prefix_of_each_other() -> None:
    plain = json.dumps({"messages": []}).encode()
    assert "cache_salt" not in passed(CHAT, plain, OPEN_TENANT)
    for path in (CHAT, COMPLETIONS, "/v1/responses", "/v1/messages"):
        mine, others = passed(path, plain), passed(path, plain, "key-" + "2" * 32)
        assert mine["cache_salt"] != others["cache_salt"]
        own = json.dumps({"messages": [], "cache_salt": others["cache_salt"]}).encode()
        salts = {passed(path, own)["cache_salt"], mine["cache_salt"], others["cache_salt"]}
        salts.add(passed(path, b'{"cache_salt": "another"}')["cache_salt"])
        assert len(salts) == 4, "a client's own salt is one within its tenant, and still makes a difference"
    with pytest.raises(PayloadError, match="cache_salt"):
        passed(CHAT, json.dumps({"cache_salt": ["x"]}).encode())


def test_with_keys_what_has_no_tenant_is_closed() -> None:
    closed = [
        ("POST", "/invocations"), ("POST", "/tokenize"), ("POST", "/v1/chat/completions/batch"), ("DELETE", "/x"),
        ("POST", "/inference/v1/generate"), ("GET", "/v1/responses/r"), ("POST", "/v1/responses/r/cancel"),
    ]  # fmt: skip
    for method, path in closed:
        refusal = refuse_route(method, path, has_keys=True)
        assert refusal is not None
        assert path in str(refusal)
        assert refuse_route(method, path, has_keys=False) is None
    for method, path in [("POST", CHAT), ("POST", GENERATE), ("GET", "/health"), ("DELETE", "/v1/memdecay/sessions")]:
        assert refuse_route(method, path, has_keys=True) is None
    with pytest.raises(PayloadError, match="no tenant"):
        passed("/v1/responses", b'{"previous_response_id": "resp_1"}')


# ---- our own route


def test_a_call_is_read() -> None:
    sampling = {"max_tokens": 4, "temperature": 0, "stop": ["END"], "logit_bias": {"7": -100}, "seed": -1}
    ids, read, hints = check_call(call(sampling=sampling), MINE, LIMITS)
    assert ids == IDS
    assert (read.max_tokens, read.temperature, read.stop, read.logit_bias) == (4, 0, ("END",), {"7": -100.0})
    assert [tuple(span)[:3] for span in hints.spans] == [(0, 10, "system"), (10, 40, "user")]
    everything = check_call(call(hints={}), MINE, LIMITS).hints
    assert [tuple(span)[:3] for span in everything.spans] == [(0, 40, "user")]


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"x": 1}, PayloadError, "x: unknown key"),
        ({"prompt_token_ids": []}, PayloadError, "prompt_token_ids: should be a list of token ids, not empty"),
        ({"prompt_token_ids": "hello"}, PayloadError, "prompt_token_ids: should be a list"),
        ({"prompt_token_ids": [1, True]}, PayloadError, r"prompt_token_ids\[1\]: should be an integer"),
        ({"prompt_token_ids": [1, 1000]}, PayloadError, r"prompt_token_ids\[1\]: .* from 0 to 999 \(got 1000\)"),
        ({"prompt_token_ids": [-1]}, PayloadError, r"prompt_token_ids\[0\]"),
        ({"prompt_token_ids": [1] * 512}, PayloadError, "512 tokens leave no room"),
        ({"sampling": {}}, PayloadError, "sampling.max_tokens: is missing"),
        ({"sampling": {"max_tokens": 0}}, PayloadError, "sampling.max_tokens"),
        ({"sampling": {"max_tokens": "4"}}, PayloadError, "sampling.max_tokens"),
        ({"sampling": {"max_tokens": 4, "n": 2}}, PayloadError, "sampling.n: unknown key"),
        ({"sampling": {"max_tokens": 4, "extra_args": {}}}, PayloadError, "sampling.extra_args: unknown key"),
        ({"sampling": {"max_tokens": 4, "temperature": -1}}, PayloadError, "sampling.temperature"),
        ({"sampling": {"max_tokens": 4, "min_tokens": 5}}, PayloadError, "sampling.min_tokens: above max_tokens"),
        ({"sampling": {"max_tokens": 4, "logprobs": 21}}, PayloadError, "21 alternatives, at most 20"),
        ({"sampling": {"max_tokens": 4, "logprobs": -1}}, PayloadError, "sampling.logprobs"),
        ({"sampling": {"max_tokens": 4, "logit_bias": {"a": 1}}}, PayloadError, "decimal digits"),
        ({"sampling": {"max_tokens": 4, "logit_bias": {"1000": 1}}}, PayloadError, "token id 1000"),
        ({"sampling": {"max_tokens": 4, "stop": [""]}}, PayloadError, "sampling.stop"),
        ({"sampling": {"max_tokens": 4, "stop": ["a"] * 65}}, PayloadError, "sampling.stop"),
        ({"sampling": {"max_tokens": 500}}, MemDecayError, "does not fit the model's 512 tokens"),
        ({"hints": []}, HintsError, "should be a mapping"),
        ({"hints": {"spans": [[0, 39, "user"]]}}, SpanError, "39"),
        ({"hints": {"spans": [[0, 40, "nowhere"]]}}, SpanError, "nowhere"),
        ({"hints": {"pins": ["nowhere"], "spans": SPANS}}, RegionError, "nowhere"),
        ({"hints": {"budget_tokens": 10**6, "spans": SPANS}}, None, ""),
        ({"hints": {"budget_tokens": 16, "spans": SPANS}}, BudgetError, "budget"),
        ({"hints": {"base": 5, "spans": [[5, 40, "user"]]}}, MemDecayError, "base"),
        ({"hints": {"session": "a/b/c", "spans": SPANS}}, HintsError, "3 fields"),
        ({"hints": {"agent": "x" * 2000, "spans": SPANS}}, HintsError, "hints.agent"),
    ],
)
def test_what_is_wrong_with_a_call_is_named(
    changes: dict[str, Any], kind: type[MemDecayError] | None, message: str
) -> None:
    if kind is None:
        assert check_call(call(**changes), MINE, LIMITS)
        return
    with pytest.raises(kind, match=message):
        check_call(call(**changes), MINE, LIMITS)


# ---- vLLM's routes


def test_a_body_without_our_parameters_passes_as_it_is() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hé🙂"}], "n": 2, "tools": [{"x": [1, None]}]}
    for path in (CHAT, COMPLETIONS, "/tokenize"):
        assert passed(path, json.dumps(body).encode(), OPEN_TENANT) == body
    assert check_body("/sleep", b"", OPEN_TENANT, LIMITS) == b""
    assert passed(CHAT, json.dumps({**body, "kv_transfer_params": None}).encode(), OPEN_TENANT) == body


def test_a_session_and_a_budget_without_spans_pass_where_the_server_renders() -> None:
    sent = passed(CHAT, chat({"memdecay": {"session": "t", "budget_tokens": 200}}))["kv_transfer_params"]["memdecay"]
    assert (sent["session"], sent["budget_tokens"], sent["spans"], sent["tenant"]) == ("t", 200, [], MINE)
    sent = passed(COMPLETIONS, b'{"prompt": "text", "kv_transfer_params": {"memdecay": {"session": "t"}}}')
    assert sent["kv_transfer_params"]["memdecay"]["session"] == "t"


def test_spans_pass_beside_the_ids_that_they_are_of() -> None:
    sent = passed(
        COMPLETIONS, json.dumps({"prompt": IDS, "kv_transfer_params": {"memdecay": {"spans": SPANS}}}).encode()
    )
    assert sent["kv_transfer_params"]["memdecay"]["spans"] == SPANS
    with pytest.raises(HintsError, match="yet to render"):
        passed(CHAT, chat({"memdecay": {"spans": SPANS}}))
    with pytest.raises(SpanError):
        passed(CHAT, chat({"memdecay": {"spans": SPANS}, "prompt_token_ids": IDS[:-1]}))


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        (CHAT, chat([]), "kv_transfer_params: should be an object"),
        (CHAT, chat({"do_remote_prefill": True}), "do_remote_prefill: unknown key"),
        (CHAT, chat({"memdecay": {}}, n=2), "n: cannot be combined"),
        (CHAT, chat({"memdecay": {}, "prompt_token_ids": IDS}, echo=True), "echo: cannot be combined"),
        (CHAT, chat({"memdecay": {}}, use_beam_search=True), "use_beam_search"),
        (CHAT, chat({"memdecay": {}}, max_tokens=-3), "max_tokens"),
        (CHAT, chat({"prompt_token_ids": [5000]}), "from 0 to 999"),
        (CHAT, chat(None, vllm_xargs={"memdecay": "{}"}), "vllm_xargs.memdecay"),
        (CHAT, chat(None, vllm_xargs={"kv_transfer_params": "{}"}), "vllm_xargs.kv_transfer_params"),
        (CHAT, chat(None, ec_transfer_params={}), "ec_transfer_params"),
        (COMPLETIONS, b'{"prompt": ["a", "b"], "kv_transfer_params": {"memdecay": {}}}', "several prompts"),
        (COMPLETIONS, b'{"prompt": [1.5], "kv_transfer_params": {"memdecay": {}}}', "prompt"),
        ("/v1/responses", b'{"kv_transfer_params": {"memdecay": {}}}', "takes no parameters of memdecay"),
        ("/inference/v1/generate", b'{"sampling_params": {"extra_args": {"memdecay": {}}}}', "extra_args.memdecay"),
    ],
)
def test_our_parameters_where_they_mean_nothing_are_refused(path: str, body: bytes, message: str) -> None:
    with pytest.raises(PayloadError, match=message):
        passed(path, body)


# ---- 10,000 payloads


@dataclass
class Scheduled:
    """vLLM's request as the engine core's side of the plugin sees it."""

    request_id: str
    sampling_params: Any
    num_prompt_tokens: int
    max_tokens: int = 4
    num_computed_tokens: int = 0
    skip_reading_prefix_cache: bool = False


def test_ten_thousand_payloads_are_refused_with_a_reason_or_harm_nobody() -> None:
    controller = EvictionController(EngineSettings(config=LIMITS.config), 16, 128, LIMITS.pool.total_pages)
    reasons, served = [], 0
    fields: dict[str, set[str]] = {"taken": set(), "refused": set()}
    for number, (path, body) in enumerate(itertools.islice(payloads(seed=4, rich=True), 10_000)):
        try:
            if path == GENERATE:
                ids, _, hints = check_call(body, MINE, LIMITS)
                message: Any = hints.to_extra_args()
                fields["taken"].update(json.loads(body)["sampling"])
            else:
                parsed = passed(path, body)
                transfer = parsed.get("kv_transfer_params") or {}
                ids = transfer.pop("prompt_token_ids", None) or [0] * 40
                ids = parsed["prompt"] if isinstance(parsed.get("prompt"), list) else ids
                message = {"kv_transfer_params": transfer}
        except MemDecayError as error:
            reasons.append((error.where, error.rule, error.remedy))
            fields["refused"].add(error.where.partition("sampling.")[2].partition(".")[0])
            continue
        served += 1
        told = RequestHints.from_extra_args(message.get("kv_transfer_params", message))
        assert told is None or told.tenant == MINE
        request: Any = Scheduled(f"r{number}", SimpleNamespace(extra_args=message), len(ids))
        controller.start(request)
        assert controller.events.total(BYPASSES) == 0, "the core read what the gate had let pass"
        assert all(tracked.home.tenant in (MINE, OPEN_TENANT) for tracked in controller._requests.values())
        controller._requests.clear()
        controller._plain.clear()
        controller._holders.clear()
    assert all(all(reason) for reason in reasons)
    assert fields["taken"] >= SAMPLING.keys() - {"structured_outputs"}
    assert fields["refused"] >= SAMPLING.keys()
    assert len(reasons) > 4000
    assert served > 1000
