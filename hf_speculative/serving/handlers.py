"""transformers' request handlers, for one model that is loaded, with a seed for each request and its counts in the answer."""

import json
from typing import Any

from fastapi import HTTPException
from fastapi.responses import JSONResponse
from transformers import PreTrainedModel

from ..hf_compat.serving import (
    BaseHandler,
    ChatCompletionHandler,
    CompletionHandler,
    Modality,
    ModelManager,
    ResponseHandler,
)
from ..models import num_logits
from .fields import check_fields, stops_of
from .manager import Counts, EngineState
from .off_loop import OffLoop, off_loop

#: fields that transformers' server leaves out of account, and what they may say all the same
WITHOUT_EFFECT: dict[str, tuple] = {
    "n": (None, 1),
    "best_of": (None, 1),
    "echo": (None, False),
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "presence_penalty": (None, 0),
    "response_format": (None, {"type": "text"}),
    "tool_choice": (None, "auto"),
}
#: fields that are read here, not by transformers' server
OURS = ("seed", "stop", "logit_bias")
#: who says how long an answer may get
LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


class OneModel(ModelManager):
    """The model that is served, loaded already; no other is.

    Args:
        name: what clients call it.
        processor: its tokenizer or processor.
    """

    def __init__(self, name: str, model: PreTrainedModel, processor):
        super().__init__()
        self.name, self.model, self.processor = name, model, processor

    def process_model_name(self, model_id: str) -> str:  # type: ignore[override]
        if model_id.split("@")[0] != self.name:
            raise HTTPException(404, f"the model {model_id!r} is not served here, {self.name!r} is")
        return super().process_model_name(model_id)

    def load_model_and_processor(self, model_id_and_revision, *args, **kwargs):
        self.process_model_name(model_id_and_revision)
        return self.model, OffLoop(self.processor)

    def get_model_modality(self, model, processor=None):  # type: ignore[override]
        return super().get_model_modality(model, self.processor)

    async def load_model_streaming(self, model_id_and_revision, *args, **kwargs):
        yield f"data: {json.dumps({'status': 'ready', 'model': self.name})}\n\n"

    def get_gen_models(self, cache_dir: str | None = None) -> list[dict]:  # type: ignore[override]
        return [{"id": self.name, "object": "model", "created": 0, "owned_by": "hf_speculative"}]

    def shutdown(self) -> None:
        """Nothing is unloaded: `/reset` is there for servers that load what is asked for."""


def with_counts(answer: dict[str, Any], counts: Counts) -> dict[str, Any]:
    """An answer that tells of its drafts, in vLLM's names, and of its prompt, in OpenAI's."""
    values = counts.statistics.to_dict()
    names = (
        "num_spec_steps",
        "num_draft_tokens",
        "num_accepted_draft_tokens",
        "draft_acceptance_rate",
        "mean_acceptance_length",
        "acceptance_histogram",
    )
    usage = answer.get("usage") or {}
    for side in [side for side in ("prompt", "input") if f"{side}_tokens" in usage]:
        usage = usage | {f"{side}_tokens_details": {"cached_tokens": counts.num_cached}}
    return answer | {"usage": usage, "metrics": {"speculative_decoding": {name: values[name] for name in names}}}


class _Handler(BaseHandler):
    generation_state: EngineState
    model_manager: OneModel

    async def handle_request(self, body: dict, request_id: str):
        return await off_loop(lambda: super(_Handler, self).handle_request(body, request_id))  # type: ignore[misc]

    def _validate_request(self, body: dict) -> None:
        super()._validate_request(body)
        models, manager = self.model_manager, self.generation_state.manager
        modality = models.get_model_modality(models.model)
        check_fields(body, manager.most_characters, reads_text_alone=modality is Modality.LLM)
        for name, harmless in WITHOUT_EFFECT.items():
            if name in body and body[name] not in harmless:
                raise HTTPException(400, f"`{name}={body[name]!r}` is not supported: leave it out")

    def _resolve_model(self, body: dict):
        asked = body.get("model") or self.model_manager.name
        return self.model_manager.name, *self.model_manager.load_model_and_processor(asked)

    def _build_generation_config(self, body: dict, model_generation_config, use_cb: bool = False):
        # The handler would seed torch for everybody; a request has a generator of its own.
        rest = {name: value for name, value in body.items() if name not in OURS}
        config = super()._build_generation_config(rest, model_generation_config, use_cb=use_cb)
        if body.get("temperature"):  # as the API has it: a temperature above 0 samples
            config.do_sample = True
        config.may_be_shorter = (
            all(body.get(name) is None for name in LENGTHS) and body.get("generation_config") is None
        )
        config.seed, config.stop_texts = body.get("seed"), stops_of(body)
        if bias := body.get("logit_bias"):
            config.sequence_bias = {(self._known(int(token)),): float(value) for token, value in bias.items()}
        return config

    def _known(self, token: int) -> int:
        if token >= (size := num_logits(self.model_manager.model)):
            raise ValueError(f"`logit_bias` names the token {token}, and the model has {size}: leave it out.")
        return token

    def _counted(self, request_id: str, answer: dict) -> dict:
        counts = self.generation_state.manager.counts_of(request_id)
        return answer if counts is None else with_counts(answer, counts)

    async def _non_streaming(self, request_id: str, *args, **kwargs) -> JSONResponse:
        response = await super()._non_streaming(request_id, *args, **kwargs)  # type: ignore[misc]
        return JSONResponse(self._counted(request_id, json.loads(response.body)))

    def _build_chunk_sse(self, request_id: str = "", *args, **kwargs) -> str:
        line = super()._build_chunk_sse(request_id, *args, **kwargs)  # type: ignore[misc]
        if kwargs.get("usage") is None:
            return line
        chunk = self._counted(request_id, json.loads(line.removeprefix("data: ")))
        return self.chunk_to_sse(json.dumps(chunk))


class _OfMessages(_Handler):
    """Of a model whose chat template makes a prompt of messages."""

    def _resolve_model(self, body: dict):
        found = super()._resolve_model(body)
        if not getattr(self.model_manager.processor, "chat_template", None):
            name = self.model_manager.name
            raise HTTPException(400, f"{name!r} has no chat template for messages: ask for the completion of a text")
        return found


class Chat(_OfMessages, ChatCompletionHandler):
    """`/v1/chat/completions`"""


class Completions(_Handler, CompletionHandler):
    """`/v1/completions`"""


class Responses(_OfMessages, ResponseHandler):
    """`/v1/responses`"""
