import json
import pickle
import subprocess
import sys

import pytest

import memdecay_agents
from memdecay_agents import errors


def test_importing_the_core_is_light():
    program = "import json, sys, memdecay_agents; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout)
    heavy = {"torch", "vllm", "langgraph", "langchain", "langchain_core", "transformers", "hypothesis", "matplotlib"}
    assert not heavy & {name.split(".")[0] for name in loaded}


def test_what_is_public_is_there():
    assert sorted(memdecay_agents.__all__) == sorted(set(memdecay_agents.__all__))
    for name in memdecay_agents.__all__:
        assert getattr(memdecay_agents, name) is not None


KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.MemDecayError)]


@pytest.mark.parametrize("kind", KINDS)
def test_errors_say_where_what_and_what_next_also_after_pickling(kind):
    error = pickle.loads(pickle.dumps(kind(where="here", rule="a rule", remedy="Do this.")))
    assert type(error) is kind
    assert str(error) == f"here: a rule. Do this. [{kind.code}]"


def test_error_codes_differ():
    assert len({kind.code for kind in KINDS}) == len(KINDS)
