"""Which nodes of a tree are on the way to which."""

import torch

from hf_speculative.types import Tree
from tests.support import trees


def test_a_tree_knows_its_paths():
    parents = [[-1, 0, 0, 2, -1, 4, 3], [-1, -1, -1, -1, -1, -1, -1]]
    tree = Tree(torch.tensor(parents), depth=4)
    for row, own in enumerate(parents):
        for node in range(7):
            path = trees.path_to(own, node)
            assert tree.ancestors[row, node].nonzero().flatten().tolist() == sorted(path)
            assert tree.depths[row, node + 1] == len(path)
            assert tree.paths[row, node, : len(path)].tolist() == path
