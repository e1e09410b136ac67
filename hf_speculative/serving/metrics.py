"""Counts for Prometheus, under vLLM's names."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
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
        engine, counts = self.engine, self.engine.statistics
        for name, text, value in (
            ("num_requests_running", "Requests in the batch.", engine.num_running),
            ("num_requests_waiting", "Requests that wait for a lane.", engine.num_waiting),
        ):
            yield self._labelled(GaugeMetricFamily(f"vllm:{name}", text, labels=["model_name"]), value)
        for name, text, value in (
            ("prompt_tokens", "Tokens of prompts.", engine.num_prompt_tokens),
            ("prefix_cache_queries", "Tokens of prompts, looked for in the rows that run.", engine.num_prompt_tokens),
            ("prefix_cache_hits", "Of these, tokens that were cached already.", engine.num_cached_tokens),
            ("generation_tokens", "Tokens generated.", counts.num_new_tokens),
            ("spec_decode_num_drafts", "Drafts that were verified.", counts.num_spec_steps),
            ("spec_decode_num_draft_tokens", "Draft tokens proposed.", counts.num_draft_tokens),
            ("spec_decode_num_accepted_tokens", "Draft tokens accepted.", counts.num_accepted_draft_tokens),
        ):
            yield self._labelled(CounterMetricFamily(f"vllm:{name}", text, labels=["model_name"]), value)
        yield self._by(
            "spec_decode_num_accepted_tokens_per_pos",
            "Drafts whose token at this position was accepted.",
            "position",
            {str(i): sum(counts.acceptance_histogram[i + 1 :]) for i in range(len(counts.acceptance_histogram) - 1)},
        )
        yield self._by("request_success", "Requests that ended, by how.", "finished_reason", dict(engine.ended))

    def _labelled(self, family, value: float):
        family.add_metric([self.name], value)
        return family

    def _by(self, name: str, text: str, label: str, values: dict[str, int]) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", text, labels=["model_name", label])
        for key, value in values.items():
            family.add_metric([self.name, key], value)
        return family


def registry_of(engine: Engine, name: str) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(EngineMetrics(engine, name))
    return registry
