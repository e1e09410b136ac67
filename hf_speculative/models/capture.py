"""Capturing a pass: run once under observation, then replayed without Python.

The seam is thin so that the logic around it is tested without a GPU: see tests/models/test_static.py for a capture that replays
the operations it saw on the CPU.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor


class Capture(Protocol):
    """Makes a replay out of a function of tensors.

    A replay takes inputs of the same shapes, and gives tensors that the next replay overwrites. Whatever the function reads
    or writes besides its inputs stays where it is in memory: weights, keys and values.
    """

    def __call__(self, function: Callable[..., Any], inputs: tuple[Tensor, ...]) -> Callable[..., Any]: ...


class CudaGraphs:
    """Captures CUDA graphs, which share one pool of memory.

    Args:
        device: where the function runs; torch captures the current device, whatever it may be.
    """

    def __init__(self, device: torch.device):
        self.device, self.pool = device, torch.cuda.graph_pool_handle()

    def __call__(self, function: Callable[..., Any], inputs: tuple[Tensor, ...]) -> Callable[..., Any]:
        with torch.cuda.device(self.device):
            return self._captured(function, inputs)

    def _captured(self, function: Callable[..., Any], inputs: tuple[Tensor, ...]) -> Callable[..., Any]:
        buffers = tuple(tensor.clone() for tensor in inputs)
        # Lazy initialisations, of cuBLAS say, must not be captured; a pass may be repeated, it writes the same slots again.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                function(*buffers)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            output = function(*buffers)

        def replay(*tensors: Tensor) -> Any:
            for buffer, tensor in zip(buffers, tensors, strict=True):
                buffer.copy_(tensor)
            graph.replay()
            return output

        return replay
