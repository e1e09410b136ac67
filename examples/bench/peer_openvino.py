"""OpenVINO GenAI beside ours with the embedded pair: `pip install openvino-genai openvino-tokenizers`.

python examples/bench/peer_openvino.py exporter/bin/python

It exports models by optimum-intel, which needs an older transformers: name the Python of an environment that has it.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import openvino_genai
import torch
import typer
from compare import show, timed_rival
from openvino import Tensor, save_model
from openvino_tokenizers import convert_tokenizer
from transformers import PreTrainedModel

import hf_speculative as hs
from hf_speculative.measuring.bench import prompts

CPU: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}


def main(
    exporter: Annotated[str, typer.Argument(help="The Python of an environment with optimum-intel.")],
    draft_tokens: Annotated[int, typer.Option(help="Draft length, the same for both.")] = 4,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    repeats: Annotated[int, typer.Option(help="Interleaved repeats.")] = 3,
):
    """Compare with OpenVINO GenAI, plain and with the draft."""
    target, draft, tokenizer = hs.embedded_pair()
    with tempfile.TemporaryDirectory() as folder:
        exported(exporter, {"target": target, "draft": draft}, tokenizer, Path(folder))
        rivals = [rival(Path(folder), drafts, temperature) for drafts in (False, True)]
        show(target, draft, tokenizer, prompts(tokenizer, 1, 64), rivals, draft_tokens, 64, temperature, repeats)


def rival(folder: Path, drafts: bool, temperature: float):
    """OpenVINO's pipeline, with the draft or plain."""
    model = OpenVino(
        folder, **({"draft_model": openvino_genai.draft_model(str(folder / "draft"), "CPU", **CPU)} if drafts else {})
    )
    sampling = {"do_sample": True, "temperature": temperature} if temperature else {}

    def new_ids(call: dict[str, Any]) -> list[list[int]]:
        own = sampling | ({"num_assistant_tokens": call["num_draft_tokens"]} if drafts else {})
        return model.generate(call["input_ids"], call["attention_mask"], call["max_new_tokens"], **own)

    return timed_rival(f"openvino{', with the draft' if drafts else ', plain'}", new_ids)


class OpenVino:
    """OpenVINO's pipeline of the target in `folder`, on as many threads as torch has, with a `generate` like a model's."""

    def __init__(self, folder: Path, **settings: Any):
        # Its own default keeps prompts for later calls: each repeat but the first would be without the prompt's pass.
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching, scheduler.max_num_batched_tokens = False, 2**31 - 1
        given = CPU | {"scheduler_config": scheduler} | settings
        self.pipeline = openvino_genai.LLMPipeline(str(folder / "target"), "CPU", **given)

    def generate(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, max_new_tokens: int, **kwargs: Any):
        """As many new tokens, whether the text ends before or not; all likely and unlikely ones, where it samples."""
        if kwargs.get("do_sample"):
            kwargs = {"top_p": 1.0} | kwargs | {"top_k": 2**31 - 1}
        config = openvino_genai.GenerationConfig(
            max_new_tokens=max_new_tokens, ignore_eos=True, apply_chat_template=False, **kwargs
        )
        ids, mask = (Tensor(np.ascontiguousarray(tensor.numpy())) for tensor in (input_ids, attention_mask))
        return self.pipeline.generate(openvino_genai.TokenizedInputs(ids, mask), config).tokens


def exported(exporter: str, models: dict[str, PreTrainedModel], tokenizer, folder: Path) -> None:
    """Write models as OpenVINO reads them, each with a tokenizer, since it asks for one."""
    tokenizers = convert_tokenizer(tokenizer, with_detokenizer=True)
    for name, model in models.items():
        model.save_pretrained(folder / "source" / name)
        command = [exporter, "-m", "optimum.commands.optimum_cli", "export", "openvino"]
        command += ["--model", str(folder / "source" / name), "--task", "text-generation-with-past", "--weight-format"]
        command += ["fp32" if model.dtype.itemsize == 4 else "fp16", str(folder / name)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"optimum-intel could not export the {name}: {done.stderr.strip().splitlines()[-1:]}")
        for part, tokenizer in zip(("tokenizer", "detokenizer"), tokenizers, strict=True):
            save_model(tokenizer, folder / name / f"openvino_{part}.xml")


if __name__ == "__main__":
    typer.run(main)
