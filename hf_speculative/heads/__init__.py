"""Published draft heads: their modules, as transformers' `PreTrainedModel`s, and the layouts of their files.

A head that transformers has a class for is loaded into that class; the others have a module here. What runs a head, its cache
and its rounds, is a drafter in `drafting`. A new layout is one file and one line in `LAYOUTS`.
"""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedModel

from .files import HeadFiles
from .layout import Layout

#: in the order in which they are asked whether files are theirs
LAYOUTS: tuple[type[Layout], ...] = ()


def load_head(name: str | Path, **kwargs) -> PreTrainedModel | None:
    """The draft head that a Hub repository or a folder holds, in eval mode; `None` if it holds none that is known here.

    No code of the repository is run.

    Args:
        **kwargs: as in transformers' `from_pretrained`.

    Raises:
        ValueError: a head of an unknown kind, or one whose tensors are not what its config says.
    """
    files = HeadFiles.of(name, kwargs)
    layout = next((layout for layout in LAYOUTS if layout.recognises(files)), None)
    if layout is not None:
        return layout(files).load(**{key: value for key, value in kwargs.items() if key not in HeadFiles.PLACES})
    if kind := files.fields.get("speculators_model_type"):
        known = ", ".join(sorted({repr(kind) for layout in LAYOUTS for kind in layout.speculators_types}))
        raise ValueError(
            f"{name} holds a draft head of `speculators_model_type={kind!r}`; those that can be run are {known or 'none'}: use "
            "another draft."
        )
    return None
