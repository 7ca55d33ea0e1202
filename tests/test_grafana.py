"""The dashboard asks for metrics and labels that exist, and shows all of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

from memdecay_adapters.engine.events import COUNTERS
from memdecay_adapters.engine.gauges import GAUGES

DASHBOARD = json.loads((Path(__file__).parent.parent / "grafana" / "memdecay.json").read_text())
METRICS = {**{f"{name}_total": spec for name, spec in COUNTERS.items()}, **GAUGES}
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def asked(query: str) -> set[str]:
    return set(re.findall(r"[a-zA-Z_:][a-zA-Z0-9_:]*_[a-zA-Z0-9_:]*", re.sub(r"\$__\w+", "", query))) - {"label_values"}


def test_every_query_names_an_existing_metric_and_its_labels():
    for query in QUERIES:
        (name,) = asked(query)
        spec = METRICS[name]
        used = set(re.findall(r"(\w+)=~", query))
        for group in re.findall(r"by \(([^)]*)\)", query):
            used |= {label.strip() for label in group.split(",")}
        assert used <= set(spec.labels), query
        assert ("rate(" in query or "increase(" in query) == name.endswith("_total"), "counters are shown as rates"


def test_every_metric_of_ours_is_on_the_dashboard():
    assert set().union(*map(asked, QUERIES)) == METRICS.keys()


def test_legends_and_variables_exist():
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            labels = set(METRICS[asked(target["expr"]).pop()].labels)
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels
    variables = {one["name"]: one for one in DASHBOARD["templating"]["list"]}
    assert asked(variables["agent"]["query"]["query"]) <= METRICS.keys()
    named = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(DASHBOARD)))
    assert named <= variables.keys()
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
