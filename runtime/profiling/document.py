"""A profile as one plain document: what the JSON file holds and the page shows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..device import is_native
from ..query_pool import timestamp_period_ns
from .bandwidth import copy_bandwidth

#: Name and version of the document.
FORMAT = "executorch-wgpu profile 1"


def about_device(device: Any) -> dict[str, Any]:
    """What a profile says of the device. Measures its copy bandwidth the first time."""
    adapter = getattr(device, "adapter", None)
    info = {key: str(value) for key, value in getattr(adapter, "info", {}).items()}
    return {
        "adapter": getattr(adapter, "summary", "unknown"),
        "info": info,
        "implementation": "wgpu-native" if is_native(device) else "Dawn",
        "timestamp_period_ns": timestamp_period_ns(device),
        "copy_bytes_per_s": copy_bandwidth(device),
    }


def document(
    device: Mapping[str, Any], groups: Sequence[Mapping[str, Any]], **more: Any
) -> dict[str, Any]:
    """Everything together.

    Args:
        device: from :func:`about_device`.
        groups: from ``Group.describe``.
        more: further keys, plain data.
    """
    return {"format": FORMAT, **more, "device": dict(device), "groups": [dict(g) for g in groups]}


def to_json(content: Mapping[str, Any]) -> str:
    """A document as text, with a newline at its end."""
    return json.dumps(content, indent=1, allow_nan=False) + "\n"
