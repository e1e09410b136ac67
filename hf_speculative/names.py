"""Names that a user gives for models: folders, repositories on the Hub, and the models that come with the package.

Imports nothing heavy, so that commands find a wrong name before they import torch.
"""

import re
from pathlib import Path

#: as the Hub takes it
REPOSITORY = re.compile(r"[A-Za-z0-9_][\w.-]*(/[\w.-]+)?")
#: joins the names of methods that guess together
AND = "+"
#: keywords of `from_pretrained` that say how files come here, whatever the repository
LOADING = ("cache_dir", "force_download", "local_files_only", "proxies", "token")
#: and those that are about one repository: its version, and whether its code may run
OF_REPOSITORY = ("revision", "trust_remote_code")
#: the embedded models, as commands name them
EMBEDDED = {
    "embedded": "target",
    "embedded/draft": "draft",
    "embedded/head": "head",
    "smollm2/tables": "drafts/smollm2",
}
#: models with real weights that have a short name here, see `embedded/__init__.py`
EXAMPLES = ("smollm2",)


def place_of(name: str | Path) -> str:
    """The folder of an embedded model; any other name as it is."""
    is_embedded = str(name) in EMBEDDED and not Path(name).exists()
    return str(Path(__file__).parent / "embedded" / EMBEDDED[str(name)]) if is_embedded else str(name)


def check_name(name: str | Path) -> None:
    """Refuse a name that can be neither a folder nor a repository.

    Raises:
        ValueError: there is no such folder, or it is a file.
    """
    path, text = Path(name), str(name)
    if path.is_dir():
        return
    if path.exists():
        raise ValueError(f"{text!r} is a file: name the folder that it lies in.")
    if not REPOSITORY.fullmatch(text):
        raise ValueError(f"there is no folder {text!r}: name a folder, or a repository on the Hub as owner/name.")
