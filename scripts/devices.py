"""``executorch-wgpu devices``: the adapters of this machine."""

from __future__ import annotations

import json
from typing import Any

import click


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Everything, as JSON.")
def devices(as_json: bool) -> None:
    """List the adapters of this machine.

    GPUs, and drivers that compute on the CPU: what each can do, and the limits in which it differs
    from WebGPU's defaults."""
    from executorch_wgpu.runtime.device import describe_adapters

    adapters = describe_adapters()
    if as_json:
        click.echo(json.dumps([_as_dict(adapter) for adapter in adapters], indent=2))
        return
    if not adapters:
        raise click.ClickException(
            "no adapter. On Debian and Ubuntu the packages mesa-vulkan-drivers and libvulkan1 "
            "bring a Vulkan driver that computes on the CPU; with a GPU, install its Vulkan driver"
        )
    _print(adapters)


def _as_dict(adapter: Any) -> dict[str, Any]:
    return {
        "summary": adapter.summary,
        "usable": adapter.usable,
        "info": adapter.info,
        "features": sorted(adapter.capabilities.features),
        "limits": dict(sorted(adapter.capabilities.limits.items())),
    }


def _print(adapters: list[Any]) -> None:
    from executorch_wgpu.scripts.console import Console
    from executorch_wgpu.serialization.limits import DEFAULT_LIMITS, KNOWN_FEATURES

    console = Console()
    for number, adapter in enumerate(adapters):
        info, offered = adapter.info, adapter.capabilities
        console.heading(f"{number}: {info.get('device') or adapter.summary}")
        known = sorted(KNOWN_FEATURES | {"timestamp-query"})
        facts = [
            ("type", info.get("adapter_type")),
            ("backend", info.get("backend_type")),
            ("vendor", info.get("vendor")),
            ("driver", info.get("description")),
            ("used here", ", ".join(name for name in known if name in offered.features) or "none"),
            ("lacks", ", ".join(name for name in known if name not in offered.features) or "none"),
        ]
        if not adapter.usable:
            facts.append(("usable", "no: a null backend that computes nothing"))
        console.facts((name, value) for name, value in facts if value)
        console.line()
        console.table(
            ["limit", "this adapter>", "WebGPU default>"],
            (
                (name, f"{offered.limits[name]:,}", f"{default:,}")
                for name, default in DEFAULT_LIMITS.items()
                if offered.limits.get(name, default) != default
            ),
        )
        others = sorted(offered.features - set(known))
        if others:
            console.line(f"  other features: {', '.join(others)}")
