"""Lifetimes, fits and profile files."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memdecay_agents import MemDecayConfig, Observation, Span, TokenState
from memdecay_agents.calibration import LifetimeCurve, Lifetimes, ProfileFile, calibrate, fit_decay
from memdecay_agents.calibration.figures import draw_lifetimes
from memdecay_agents.calibration.fits import decay
from memdecay_agents.errors import ConfigError, TraceError
from memdecay_agents.evaluation.recording import AttentionRecording
from memdecay_agents.evaluation.traces import TokenTrace

NAMES = MemDecayConfig().region_names
PATTERN = (("system", 40), ("user", 60), ("plan", 40), ("tool_out", 60), ("scratchpad", 80))


def trace_of(pieces=PATTERN * 2) -> TokenTrace:
    spans, at = [], 0
    for region, length in pieces:
        spans.append(Span(at, at + length, region))
        at += length
    return TokenTrace("t", "test", at, np.arange(at), tuple(spans))


def decaying(trace: TokenTrace, form: str, half_lives: dict[str, float]) -> AttentionRecording:
    """Attention that decays by region exactly as told, in tokens, up to each query's own level."""
    n = trace.n_tokens
    age = np.arange(n)[:, None] - np.arange(n)[None, :]
    mass = np.zeros((n, n))
    for span in trace.spans:
        part = np.maximum(age[:, span.start : span.end], 0)
        mass[:, span.start : span.end] = decay(form, part, half_lives[span.region])
    mass = np.tril(mass) / 1000.0
    return AttentionRecording.of(np.arange(n), (mass / (np.arange(n)[:, None] + 1)).astype(np.float32), np.ones(n))


@given(st.sampled_from(["exponential", "power_law"]), st.floats(5.0, 500.0), st.floats(0.05, 20.0), st.integers(0, 99))
def test_a_decay_is_found_again_under_noise(form, half_life, level, seed):
    age = np.geomspace(1, 1000, 24)
    noise = np.exp(np.random.default_rng(seed).normal(0, 0.02, age.size))
    seen = np.maximum(level * decay(form, age, half_life) * noise, 1e-6)
    kept = seen > 1e-5  # what is attended to that little is below the floor
    fit = fit_decay(LifetimeCurve(age[kept], seen[kept], np.full(kept.sum(), 50.0)), form)
    assert fit.half_life_ticks == pytest.approx(half_life, rel=0.15)
    assert fit.level == pytest.approx(level, rel=0.15)
    assert fit.r_squared > 0.95


def test_what_does_not_decay_has_no_half_life():
    age = np.geomspace(1, 1000, 20)
    curve = LifetimeCurve(age, np.full(20, 0.7), np.ones(20))
    for form in ("exponential", "power_law"):
        assert fit_decay(curve, form).half_life_ticks is None
    assert fit_decay(LifetimeCurve(age[:3], age[:3], age[:3]), "exponential") is None


def test_half_lives_of_a_trace_come_out_by_region():
    trace = trace_of()
    truth = {"system": 5000.0, "user": 120.0, "plan": 60.0, "tool_out": 30.0, "scratchpad": 15.0}
    lifetimes = Lifetimes(NAMES, "tokens")
    lifetimes.add_trace(trace, decaying(trace, "power_law", truth))
    found = calibrate(lifetimes, traces=1)
    assert found.decay_form == "power_law"
    assert found.queries == 240
    for region in truth:
        assert found.regions[region].half_life_ticks == pytest.approx(truth[region], rel=0.25)
        assert found.regions[region].power_law.r_squared > 0.98


def test_each_clock_counts_its_own_ticks():
    trace = trace_of()
    recording = decaying(trace, "exponential", dict.fromkeys(dict(PATTERN), 99.0))
    oldest = {}
    for unit in ("tokens", "decode_steps", "turns"):
        lifetimes = Lifetimes(NAMES, unit)
        lifetimes.add_trace(trace, recording, every=7)
        oldest[unit] = lifetimes.curve("system").age_ticks.max()
    assert oldest["tokens"] > oldest["decode_steps"] > oldest["turns"]
    assert oldest["turns"] <= 4


@pytest.mark.parametrize(
    ("pieces", "rule"),
    [
        ((("user", 20), ("plan", 20)), "too few"),
        ((("plan", 200),), "one region"),
        ((("user", 200), ("plan", 5)), "generated"),
    ],
)
def test_bad_traces_are_refused_with_the_reason(pieces, rule):
    trace = trace_of(pieces)
    recording = decaying(trace, "exponential", {"user": 10.0, "plan": 10.0})
    with pytest.raises(TraceError, match=rule):
        Lifetimes(NAMES, "tokens").add_trace(trace, recording)


def test_nan_and_foreign_recordings_are_refused():
    trace = trace_of()
    with pytest.raises(TraceError, match="NaN"):
        Lifetimes(NAMES, "tokens").add(np.zeros(1, np.int8), np.zeros(1, np.int64), np.asarray([np.nan], np.float32))
    half_lives = dict.fromkeys(dict(PATTERN), 9.0)
    other = decaying(trace_of(PATTERN), "exponential", half_lives)
    with pytest.raises(TraceError, match="other tokens"):
        Lifetimes(NAMES, "tokens").add_trace(trace, other)
    with pytest.raises(TraceError, match="enough ages"):
        calibrate(Lifetimes(NAMES, "tokens"), traces=0)


@pytest.mark.parametrize("unit", ["tokens", "decode_steps"])
def test_a_running_engines_observations_count_like_a_traces(unit):
    config = MemDecayConfig()
    state = TokenState(config)
    state.extend(100, spans=[Span(0, 60, "user"), Span(60, 100, "plan")])
    lifetimes = Lifetimes(NAMES, unit)
    mass = np.full(100, 0.01)
    lifetimes.add_observation(state, Observation(np.arange(100), mass, 4, decode=False))
    assert lifetimes.queries == 0
    lifetimes.add_observation(state, Observation(np.arange(100), mass, 4))
    curve = lifetimes.curve("user")
    assert curve.weight.sum() == 44  # the first 16 are left out
    assert np.allclose(curve.relative, 1.0)
    assert curve.age_ticks.max() <= (99 - 16 if unit == "tokens" else 40)
    with pytest.raises(TraceError, match="turn"):
        Lifetimes(NAMES, "turns").add_observation(state, Observation(np.arange(100), mass))


# --- profile files ----------------------------------------------------------------------------


def profile() -> ProfileFile:
    contexts = []
    for length, scale in ((200, 1.0), (280, 2.0)):
        pieces = PATTERN if length == 280 else PATTERN[:-1]
        trace = trace_of(pieces)
        half_lives = dict.fromkeys(("system", "user", "plan", "tool_out", "scratchpad"), 20.0 * scale)
        lifetimes = Lifetimes(NAMES, "decode_steps")
        lifetimes.add_trace(trace, decaying(trace, "exponential", half_lives))
        contexts.append(calibrate(lifetimes, traces=1))
    return ProfileFile(model="test", clock_unit="decode_steps", contexts=tuple(contexts))


def test_a_profile_comes_back_and_the_configuration_loads_it(tmp_path):
    path = tmp_path / "profile.yaml"
    made = profile()
    made.save(path)
    assert ProfileFile.load(path) == made
    assert "schema: memdecay-profile\nversion: 1\n" in path.read_text()
    config = MemDecayConfig.from_profile(path, context_tokens=260, regions={"user": {"base_priority": 0.4}})
    context = made.nearest(260)
    assert context is made.contexts[-1]
    assert config.clock_unit == "decode_steps"
    assert config.decay_form == context.decay_form
    assert config.regions["user"].half_life_ticks == context.regions["user"].half_life_ticks
    assert config.regions["user"].base_priority == 0.4
    assert config.regions["system"].pinned
    assert MemDecayConfig.from_profile(path).regions == MemDecayConfig.from_profile(path, context_tokens=9999).regions


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda text: text.replace("version: 1", "version: 2"), "version"),
        (lambda text: text.replace("decode_steps", "hours"), "clock_unit"),
        (lambda text: text.replace("half_life_ticks: ", "half_life_ticks: -", 1), "half_life_ticks"),
        (lambda text: text + "surprise: 1\n", "surprise"),
        (lambda text: "- 1\n", "mapping"),
        (lambda text: "{", "profile"),
    ],
)
def test_a_profile_that_is_none_is_refused(tmp_path, change, rule):
    path = tmp_path / "profile.yaml"
    profile().save(path)
    path.write_text(change(path.read_text()))
    with pytest.raises(ConfigError, match=rule):
        MemDecayConfig.from_profile(path)


def test_a_profile_is_refused_with_another_clock(tmp_path):
    path = tmp_path / "profile.yaml"
    profile().save(path)
    with pytest.raises(ConfigError, match="was made for decode_steps"):
        MemDecayConfig.from_profile(path, clock_unit="tokens")


def test_curves_are_drawn(tmp_path):
    trace = trace_of()
    lifetimes = Lifetimes(NAMES, "decode_steps")
    half_lives = dict.fromkeys(dict(PATTERN), 30.0)
    lifetimes.add_trace(trace, decaying(trace, "power_law", half_lives))
    assert draw_lifetimes(lifetimes, tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match="no region"):
        draw_lifetimes(Lifetimes(NAMES, "tokens"), tmp_path / "none.png")
