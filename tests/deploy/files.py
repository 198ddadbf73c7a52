"""The files in deploy/: rules, alerts and dashboards as values, and the metrics that a query names."""

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

from tests.docs import ROOT

DEPLOY = ROOT / "deploy"
RULES = (DEPLOY / "prometheus" / "recording-rules.yaml", DEPLOY / "prometheus" / "alerts.yaml")
GROUPS: list[Any] = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
EVERY = [rule for group in GROUPS for rule in group["rules"]]
RECORDED: dict[str, str] = {rule["record"]: rule["expr"] for rule in EVERY if "record" in rule}
ALERTS: dict[str, Any] = {rule["alert"]: rule for rule in EVERY if "alert" in rule}
_WORDS = {"and", "or", "unless", "bool", "offset", "by", "without", "on", "ignoring", "group_left", "group_right"}
_LISTS = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_SELECTOR = re.compile(r"(?<![\w:])([a-zA-Z_:][\w:]*)(\{[^}]*\})?(?![\w:]|\s*\()")


def queries() -> Iterator[tuple[str, str]]:
    """Yield each query of rules, alerts and dashboards with its location."""
    yield from RECORDED.items()
    for name, alert in ALERTS.items():
        yield name, alert["expr"]
    for path in (DEPLOY / "grafana").glob("*.json"):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):  # a row has none
                yield f"{path.name}: {panel['title']} {target['refId']}", target["expr"]


def selectors(query: str) -> list[str]:
    """Return the metrics that a query selects, each with its matchers."""
    bare = re.sub(r"\[[^\]]*\]", "", _LISTS.sub(" ", query))
    return [match[0] for match in _SELECTOR.finditer(bare) if match[1] not in _WORDS]


def metrics(query: str) -> set[str]:
    """Return the names of the metrics that a query selects."""
    return {selector.partition("{")[0] for selector in selectors(query)}


def labels(query: str) -> set[str]:
    """Return the labels that a query groups, joins or selects by."""
    lists = [name.strip() for match in _LISTS.findall(query) for name in match.split(",")]
    matchers = [name for match in re.findall(r"\{([^}]*)\}", query) for name in re.findall(r"(\w+)\s*[=!]", match)]
    return {*lists, *matchers} - {""}


def table_name(metric: str) -> str:
    """Return a metric's name without the suffixes of a histogram."""
    return re.sub(r"_(bucket|sum|count)\Z", "", metric)
