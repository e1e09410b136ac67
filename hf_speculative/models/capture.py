"""Capture a pass once, and replay it without Python.

The interface is small, so that the code around it can be tested without a GPU: tests/models/test_static.py has a capture that
replays recorded operations on the CPU.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

#: Make a replay of a function of tensors. A replay takes inputs of the same shapes, and returns tensors that the next replay
#: overwrites. All else that the function reads or writes has to stay at its address: weights, keys and values.
Capture = Callable[[Callable[..., Any], tuple[Tensor, ...]], Callable[..., Any]]


def are_equal(one: Any, other: Any) -> bool:
    """Whether two outputs of a function are the same bits."""
    pairs = zip(tree_leaves(one), tree_leaves(other), strict=True)
    return all(torch.equal(a, b) for a, b in pairs if isinstance(a, Tensor))


def clone(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


class CudaGraphs:
    """Captures CUDA graphs, which share one pool of memory, and compares the first replay of each with the pass.

    Args:
        device: where the function runs; torch captures on its current device.

    Raises:
        RuntimeError: a function that waits for the device, or whose replay gives other bits.
    """

    def __init__(self, device: torch.device):
        self.device, self.pool = device, torch.cuda.graph_pool_handle()

    def __call__(self, function: Callable[..., Any], inputs: tuple[Tensor, ...]) -> Callable[..., Any]:
        with torch.cuda.device(self.device):
            buffers = tuple(tensor.clone() for tensor in inputs)
            # Lazy initialisation, as of cuBLAS, must not be captured. A repeated pass writes the same slots again.
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                first, second = (tree_map(clone, function(*buffers)) for _ in range(2))
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self.pool):
                output = function(*buffers)
            graph.replay()
            # Passes that draw, or add in any order, tell nothing.
            if are_equal(first, second) and not are_equal(output, second):
                raise RuntimeError("a replay gives other bits than the pass that was captured; please report this")

        def replay(*tensors: Tensor) -> Any:
            for buffer, tensor in zip(buffers, tensors, strict=True):
                buffer.copy_(tensor)
            graph.replay()
            return output

        return replay
