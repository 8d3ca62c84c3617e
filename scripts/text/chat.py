"""Chat templates: the Jinja that models are published with."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any


def render(
    template: str | None,
    messages: Sequence[Mapping[str, str]],
    tokens: Mapping[str, str],
    *,
    add_generation_prompt: bool = True,
) -> str:
    """The text of a conversation.

    Args:
        template: of a file that is not trusted: it runs in Jinja's sandbox.
        messages: ``{"role": "user", "content": ...}``, in order.
        tokens: special tokens by role, such as ``bos_token``.
        add_generation_prompt: end where the model's answer begins.

    Raises ValueError where there is no template, it is malformed, or it refuses the messages, and
    ModuleNotFoundError without jinja2.
    """
    if template is None:
        raise ValueError("this model has no chat template; use --prompt")
    try:
        import jinja2
        import jinja2.sandbox
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "chat templates need jinja2: pip install jinja2", name="jinja2"
        ) from error

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        extensions=["jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _now
    try:
        return environment.from_string(template).render(
            messages=list(messages), add_generation_prompt=add_generation_prompt, **tokens
        )
    except jinja2.TemplateError as error:
        raise ValueError(f"the chat template failed: {error}") from error


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> None:
    import jinja2

    raise jinja2.TemplateError(message)


def _now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)
