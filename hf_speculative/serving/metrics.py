"""Counts for Prometheus, under vLLM's names."""

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .engine import Engine


class EngineMetrics(Collector):
    """Counts of an engine, read at each scrape.

    Args:
        name: of the model, a label of all metrics.
    """

    def __init__(self, engine: Engine, name: str):
        self.engine, self.name = engine, name

    def collect(self) -> Iterator[Metric]:
        engine, counts, num_prompt_tokens = self.engine, self.engine.statistics, self.engine.num_prompt_tokens
        gauge, counter = GaugeMetricFamily, CounterMetricFamily
        for kind, name, text, value in (
            (gauge, "num_requests_running", "Requests in the batch.", engine.num_running),
            (gauge, "num_requests_waiting", "Requests that wait for a lane.", engine.num_waiting),
            (counter, "prompt_tokens", "Tokens of prompts.", num_prompt_tokens),
            (counter, "prefix_cache_queries", "Tokens of prompts, looked for in the rows that run.", num_prompt_tokens),
            (counter, "prefix_cache_hits", "Of these, tokens that were cached already.", engine.num_cached_tokens),
            (counter, "generation_tokens", "Tokens generated.", counts.num_new_tokens),
            (counter, "spec_decode_num_drafts", "Drafts that were verified.", counts.num_spec_steps),
            (counter, "spec_decode_num_draft_tokens", "Draft tokens proposed.", counts.num_draft_tokens),
            (counter, "spec_decode_num_accepted_tokens", "Draft tokens accepted.", counts.num_accepted_draft_tokens),
        ):
            yield self._family(kind, name, text, {(): value})
        later = counts.acceptance_histogram[1:]
        accepted = {(str(i),): sum(later[i:]) for i in range(len(later))}
        text = "Drafts whose token at this position was accepted."
        yield self._family(counter, "spec_decode_num_accepted_tokens_per_pos", text, accepted, "position")
        ended = {(how,): num for how, num in list(engine.ended.items())}
        yield self._family(counter, "request_success", "Requests that ended, by how.", ended, "finished_reason")

    def _family(self, kind, name: str, text: str, values: Mapping[Any, int], *labels: str) -> Metric:
        family = kind(f"vllm:{name}", text, labels=["model_name", *labels])
        for keys, value in values.items():
            family.add_metric([self.name, *keys], value)
        return family
