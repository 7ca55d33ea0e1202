import json
import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memdecay_agents import DEFAULT_PROFILES, REGIONS, MemDecayConfig, RegionProfile
from memdecay_agents.errors import ConfigError, RegionError
from memdecay_agents.region_table import RegionTable

profiles = st.builds(
    RegionProfile,
    base_priority=st.floats(0, 10),
    half_life_ticks=st.none() | st.floats(0.1, 1e6),
    pinned=st.booleans(),
    quota_weight=st.none() | st.floats(0, 5),
)
configs = st.builds(
    MemDecayConfig,
    regions=st.dictionaries(
        st.sampled_from(REGIONS) | st.from_regex(r"[a-z][a-z0-9_]{0,10}", fullmatch=True), profiles, max_size=4
    ),
    clock_unit=st.sampled_from(["decode_steps", "tokens", "turns"]),
    alpha=st.floats(0, 10),
    page_size_tokens=st.sampled_from([16, 32, 48]),
    observed_layers=st.just("all")
    | st.integers(1, 9)
    | st.sets(st.integers(0, 40), min_size=1).map(lambda s: tuple(sorted(s))),
)


@given(configs)
def test_a_config_is_what_its_json_and_its_pickle_make(config):
    again = MemDecayConfig.model_validate(json.loads(json.dumps(config.model_dump(mode="json"), sort_keys=True)))
    assert again == config
    assert hash(again) == hash(config)
    assert again.region_names == config.region_names
    assert pickle.loads(pickle.dumps(config)) == config


@given(configs)
def test_the_seven_regions_come_first_and_each_name_finds_its_index(config):
    assert config.region_names[:7] == REGIONS
    assert [config.region_index(name) for name in config.region_names] == list(range(len(config.region_names)))


@given(configs)
def test_the_region_table_says_what_the_profiles_say(config):
    table = RegionTable.of(config)
    for index, name in enumerate(config.region_names):
        profile = config.regions[name]
        rate = 0.0 if profile.half_life_ticks is None else math.log(2) / profile.half_life_ticks
        assert table.decay_rate_per_tick[index] == pytest.approx(rate)
        assert profile.decay_rate_per_tick == pytest.approx(rate)
        assert table.half_life_ticks[index] == pytest.approx(profile.half_life_ticks or math.inf)
        assert table.quota_weight[index] == pytest.approx(
            profile.base_priority if profile.quota_weight is None else profile.quota_weight
        )
    by_rank = sorted(range(len(table.names)), key=lambda i: table.tie_rank[i])
    keys = [(table.base_priority[i], -i) for i in by_rank]
    assert keys == sorted(keys)


def test_defaults_pin_system_and_rank_user_high_without_a_pin():
    config = MemDecayConfig()
    assert config.regions == dict(DEFAULT_PROFILES)
    assert [name for name, profile in config.regions.items() if profile.pinned] == ["system"]
    lasting = {
        name: profile.base_priority
        for name, profile in config.regions.items()
        if not profile.pinned and profile.half_life_ticks is None
    }
    assert max(lasting, key=lasting.get) == "user"
    assert config.regions["user"].effective_quota_weight > 0


def test_paper_mode_counts_decode_steps_with_the_published_half_lives():
    config = MemDecayConfig.paper(paper_alpha=2.0)
    assert (config.policy, config.clock_unit, config.paper_alpha) == ("paper", "decode_steps", 2.0)
    assert 148 <= config.regions["system"].half_life_ticks <= 189
    assert 14 <= config.regions["scratchpad"].half_life_ticks <= 16
    assert MemDecayConfig.for_policy("paper") == MemDecayConfig.paper()
    assert MemDecayConfig.for_policy("random", seed=3) == MemDecayConfig(policy="random", seed=3)
    with pytest.raises(ConfigError, match=r"decode_steps.*MemDecayConfig\.paper"):
        MemDecayConfig(policy="paper", clock_unit="tokens")


def test_some_fields_of_a_default_region_can_be_changed_alone():
    config = MemDecayConfig(regions={"plan": {"pinned": True}, "notes": {"base_priority": 0.4}})
    assert config.regions["plan"] == DEFAULT_PROFILES["plan"].model_copy(update={"pinned": True})
    assert config.regions["notes"].base_priority == 0.4
    assert config.region_index("notes") == 7


def test_profiles_for_another_clock_are_refused():
    with pytest.raises(ConfigError, match=r"regions\['plan'\].*made for decode_steps.*clock is turns"):
        MemDecayConfig(clock_unit="turns", regions={"plan": DEFAULT_PROFILES["plan"]})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"half_life": 3}, r"MemDecayConfig\.half_life: unknown key"),
        ({"page_size_tokens": 24}, "no multiple of 16"),
        ({"page_size_tokens": True}, "page_size_tokens.*integer"),
        ({"page_size_tokens": "16"}, "page_size_tokens.*integer"),
        ({"alpha": math.nan}, "alpha.*finite"),
        ({"default_budget_tokens": 15}, "less than one page"),
        ({"default_budget_tokens": -1}, "greater than 0"),
        ({"observed_layers": 0}, "names no layers"),
        ({"observed_layers": []}, "names no layers"),
        ({"observed_layers": [1, 1]}, "names no layers"),
        ({"clock_unit": "seconds"}, "clock_unit"),
        ({"regions": {"plan": {"half_life_ticks": -1}}}, r"regions\['plan'\]\.half_life_ticks"),
        ({"regions": {"notes": {"pinned": True}}}, r"regions\['notes'\]\.base_priority: is missing"),
        ({"regions": {"Bad Name": {"base_priority": 1.0}}}, "no region name"),
        ({"regions": {"plan": 3}}, "regions"),
        ({"regions": 3}, "regions"),
        ({"regions": {f"r{i}": {"base_priority": 1.0} for i in range(120)}}, "at most 100"),
    ],
)
def test_bad_values_are_refused_with_their_place(values, message):
    with pytest.raises(ConfigError, match=message):
        MemDecayConfig(**values)


def test_bad_profiles_are_refused():
    with pytest.raises(ConfigError, match=r"RegionProfile\.base_priority"):
        RegionProfile(base_priority=-1.0)
    with pytest.raises(ConfigError, match="MemDecayConfig"):
        MemDecayConfig.model_validate("not a mapping")


def test_an_unknown_region_lists_the_known_ones():
    with pytest.raises(RegionError, match=r"'notes'.*system, plan, user"):
        MemDecayConfig().region_index("notes")


def test_a_config_cannot_be_changed():
    with pytest.raises(Exception, match="frozen"):
        MemDecayConfig().alpha = 1.0


def test_what_is_read_refers_to_nothing_unless_it_is_said_so():
    def refers(**regions):
        table = RegionTable.of(MemDecayConfig(regions=regions))
        return {name for name, flag in zip(table.names, table.refers, strict=True) if flag}

    said = {"system", "plan", "user", "tool_in", "scratchpad"}
    assert refers() == said
    assert refers(tool_out=RegionProfile(base_priority=1.0), notes=RegionProfile(base_priority=0.5)) == said | {"notes"}
    assert refers(tool_out={"refers": True}, user={"refers": False}) == (said | {"tool_out"}) - {"user"}
