"""Trees of draft tokens."""

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional


@dataclass
class Nodes:
    """The nodes of one row's tree, on the host, with their chances to be kept: parents first and the likeliest first.

    Attributes:
        tokens, parents, chances: of each node; a parent is a node, or -1 for the row's newest token.
        depths: of each node, 1 for one that follows the newest token.
    """

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)

    def add(self, token: int, parent: int, chance: float) -> int:
        """Append a node; which one it is."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.chances.append(chance)
        self.depths.append(1 if parent < 0 else self.depths[parent] + 1)
        return len(self.tokens) - 1


@dataclass(frozen=True)
class Tree:
    """How draft tokens follow each other: several may follow one, so that one target pass judges many continuations.

    Miao et al. 2024, SpecInfer (arXiv 2305.09781), section 4: the nodes of a tree below a row's newest token.

    Attributes:
        parents: `(batch, n)` int64, the node that each node follows, -1 for the row's newest token. Parents come first.
        depth: no node is deeper; what follows the newest token has depth 1.
    """

    parents: Tensor
    depth: int

    @cached_property
    def ancestors(self) -> Tensor:
        """`(batch, n, n)` bool: node j is on the path to node i, or is i itself."""
        nodes = torch.arange(self.parents.shape[1], device=self.parents.device)
        reached = (self.parents[:, :, None] == nodes) | (nodes[:, None] == nodes)
        steps = 1
        while steps < self.depth:  # paths of twice as many steps
            reached = (reached.float() @ reached.float()) > 0
            steps *= 2
        return reached

    @cached_property
    def elders(self) -> Tensor:
        """`(batch, n, n)` bool: node j follows the same node as node i, and stands before it."""
        return (self.parents[:, :, None] == self.parents[:, None]).tril(-1)

    @cached_property
    def depths(self) -> Tensor:
        """`(batch, n + 1)` int64, how many draft tokens stand before each position: 0 before the first, the newest token's."""
        return functional.pad(self.ancestors.sum(2), (1, 0))

    @cached_property
    def host_parents(self) -> list[list[int]]:
        """`parents` as lists."""
        return self.parents.tolist()

    @cached_property
    def paths(self) -> Tensor:
        """`(batch, n, depth)` int64, the nodes on the way to each node, itself included; filler beyond."""
        batch_size, num_nodes = self.parents.shape
        nodes = torch.arange(num_nodes, device=self.parents.device).expand_as(self.ancestors)
        places = torch.where(self.ancestors, self.depths[:, None, 1:] - 1, self.depth)
        paths = self.parents.new_zeros(batch_size, num_nodes, self.depth + 1)
        return paths.scatter_(2, places, nodes)[..., : self.depth]
