"""Other packages that decode with a draft, measured on the same pair: each is there where it is installed.

What a peer needs of the pair is written once to a temporary folder, and goes with the pair. Its tokens are compared with plain
decoding's, see `measure.py`.
"""

from __future__ import annotations

import importlib.util
import os

#: names the Python of another environment, whose optimum-intel exports models for OpenVINO: it needs an older transformers
EXPORTER = "HF_SPECULATIVE_OPENVINO_PYTHON"
#: what else a package needs
ALSO = {"xllamacpp": ("gguf",)}


def missing_reason(package: str) -> str | None:
    """What to do where a peer is not installed; `None` if it is."""
    for name in (package, *ALSO.get(package, ())):
        if importlib.util.find_spec(name) is None:
            return f"it needs {name}: pip install 'hf_speculative[peers]'"
    if package == "openvino_genai" and not os.environ.get(EXPORTER):
        return (
            "its models are exported by optimum-intel, which needs an older transformers: python -m venv exporter; "
            f"exporter/bin/pip install optimum-intel[openvino]; export {EXPORTER}=$PWD/exporter/bin/python"
        )
    return None
