"""Text around a model: tokenizers and chat templates, kept in the ``.pte`` and read without torch.

text = load_text("smollm2.pte")
generator = TextGenerator("smollm2.pte", text)
generator.generate(text.chat([{"role": "user", "content": "Hello"}]))
"""

from __future__ import annotations

import os

from executorch_wgpu.scripts.text.bundle import TextBundle
from executorch_wgpu.scripts.text.tokenizer import Text
from executorch_wgpu.serialization.pte import PteFile

__all__ = ["Text", "TextBundle", "load_text"]


def load_text(path: str | os.PathLike[str]) -> Text | None:
    """The tokenizer and chat template in a ``.pte``, None where it has none.

    Raises OSError, InvalidProgramError, and ModuleNotFoundError with the package to install.
    """
    with PteFile.open(path) as pte:
        bundle = TextBundle.from_named_data(pte.named_data_keys, pte.named_data)
    return None if bundle is None else Text(bundle)
