"""Command encoders of one graph's steps: opened, given passes, finished.

:class:`NativeEncoders` calls what wgpu-py calls, with descriptors that are made once: wgpu-py makes
one a call, with a label that is the same every step, which costs 30 us a command buffer. What comes
out are wgpu-py's own objects, and errors are raised as it raises them.
"""

from __future__ import annotations

import importlib
from typing import Any

from .device import is_native


class Encoders:
    """Through the plain API.

    Args:
        device: a ``GPUDevice``.
        label: names all of them.
    """

    def __init__(self, device: Any, label: str) -> None:
        self._device, self._label = device, label

    def open(self) -> Any:
        """A ``GPUCommandEncoder``."""
        return self._device.create_command_encoder(label=self._label)

    def begin(self, encoder: Any) -> Any:
        """A ``GPUComputePassEncoder`` of it."""
        return encoder.begin_compute_pass(label=self._label)

    def finish(self, encoder: Any) -> Any:
        """Its ``GPUCommandBuffer``."""
        return encoder.finish(label=self._label)


class NativeEncoders(Encoders):
    """Through wgpu-native's C functions.

    Args:
        api: wgpu-py's module ``wgpu.backends.wgpu_native._api``.
    """

    def __init__(self, device: Any, label: str, api: Any) -> None:
        super().__init__(device, label)
        self._encoder = api.GPUCommandEncoder
        self._pass = api.GPUComputePassEncoder
        self._commands = api.GPUCommandBuffer
        self._create = api.libf.wgpuDeviceCreateCommandEncoder
        self._begin = api.libf.wgpuCommandEncoderBeginComputePass
        self._finish = api.libf.wgpuCommandEncoderFinish
        text = label.encode()
        self._text = api.ffi.new("char[]", text)
        kinds = ("CommandEncoder", "ComputePass", "CommandBuffer")
        descriptors = [api.ffi.new(f"WGPU{kind}Descriptor *") for kind in kinds]
        for descriptor in descriptors:
            descriptor.label.data = self._text
            descriptor.label.length = len(text)
        self._of_encoder, self._of_pass, self._of_commands = descriptors

    def open(self) -> Any:
        device = self._device
        handle = self._create(device._internal, self._of_encoder)
        return self._encoder(self._label, handle, device)

    def begin(self, encoder: Any) -> Any:
        handle = self._begin(encoder._internal, self._of_pass)
        return self._pass(self._label, handle, self._device)

    def finish(self, encoder: Any) -> Any:
        handle = self._finish(encoder._internal, self._of_commands)
        return self._commands(self._label, handle, self._device)


def encoders_of(device: Any, label: str, *, plain: bool = False) -> Encoders:
    """Those for ``device``; ``plain`` forces the plain API."""
    if plain or not is_native(device):
        return Encoders(device, label)
    api = importlib.import_module("wgpu.backends.wgpu_native._api")
    return NativeEncoders(device, label, api)
