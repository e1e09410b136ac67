"""Files of torch's AOTInductor."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

import torch
from torch import Tensor


class CompiledFunction:
    """A function of `CompiledPackage` on constants of its own.

    Attributes:
        constants: their names, by those that torch has for them.
    """

    def __init__(self, library: Path):
        self.runner = torch._C._aoti.AOTIModelContainerRunnerCpu(str(library), 1)
        self.constants: dict[str, str] = self.runner.get_constant_names_to_original_fqns()
        self.run = self.runner.run

    def load_constants(self, constants: Mapping[str, Tensor]) -> None:
        """Read these very tensors, which torch keeps for good."""
        use_inactive, check_full_update, user_managed = False, True, True
        named = {name: constants[own] for name, own in self.constants.items()}
        self.runner.update_constant_buffer(named, use_inactive, check_full_update, user_managed)


class CompiledPackage:
    """A file of torch's AOTInductor. Its functions share the code, which `AOTIModelPackageLoader` would load for each."""

    def __init__(self, path: Path):
        with ZipFile(path) as archive:
            inside = {Path(name).name: name for name in archive.namelist()}
            (library,) = (name for name in inside if name.endswith((".so", ".pyd", ".dylib")))
            self.folder = TemporaryDirectory(ignore_cleanup_errors=True)
            self.library = Path(archive.extract(inside[library], self.folder.name))
            if (operators := f"{self.library.stem}.json") in inside:  # torch looks for it there: operators of ours
                archive.extract(inside[operators], self.folder.name)

    def function(self) -> CompiledFunction:
        """Another one."""
        return CompiledFunction(self.library)

    def close(self) -> None:
        """Its functions stay; a system that does not let go of a loaded library keeps the file."""
        self.folder.cleanup()
