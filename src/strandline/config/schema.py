"""The project file as JSON Schema, so that editors complete and check it while it is written."""

from __future__ import annotations

from typing import Any

from strandline.config.model import ProjectConfig
from strandline.transform import registry


def json_schema() -> dict[str, Any]:
    """The schema of `strandline.yaml`; each step's `params` are those of its operation."""
    schema = ProjectConfig.model_json_schema(by_alias=True)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "strandline.yaml"
    definitions = schema.setdefault("$defs", {})
    target = definitions["NodeConfig"]["properties"]["write"]
    several = {
        "type": "array",
        "items": target,
        "minItems": 1,
    }  # each becomes a node before the models see it
    definitions["NodeConfig"]["properties"]["write"] = {"anyOf": [target, several]}
    definitions["StepConfig"] = {
        "title": "StepConfig",
        "description": "A registered step and its parameters.",
        "type": "object",
        "required": ["operation"],
        "oneOf": [_step(name, definitions) for name in registry.names()],
    }
    return schema


def _step(name: str, definitions: dict[str, Any]) -> dict[str, Any]:
    step = registry.get(name)
    if step is None:  # names() lists only what get() finds
        raise LookupError(name)
    params = step.param_model.model_json_schema(by_alias=True, ref_template="#/$defs/{model}")
    definitions.update(params.pop("$defs", {}))
    return {
        "properties": {"operation": {"const": name}, "params": params},
        "additionalProperties": False,
        "required": ["operation", "params"] if params.get("required") else ["operation"],
    }
