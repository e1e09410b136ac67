"""Other people's clients against a server in a process of its own: lm-eval."""

import json

import pytest

from hf_speculative.embedded import FOLDER, embedded_pair
from tests.support.served import TEMPLATE, serving

pytest.importorskip("tenacity", reason="lm_eval[api] needs it")
pytestmark = pytest.mark.slow

DOCUMENTS = [
    {"text": "import os\n", "goal": "import sys", "choices": ["import sys", "banana"], "label": 0},
    {"text": "def run(self, ", "goal": "name", "choices": ["class", "name):"], "label": 1},
    {"text": "def main():\n", "goal": "    ", "choices": ["\n\n\n\n", "    return"], "label": 1},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The embedded target with a chat template, which repeats what it is told."""
    folder = tmp_path_factory.mktemp("target")
    target, _, tokenizer = embedded_pair()
    tokenizer.chat_template = TEMPLATE
    target.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def address(folder):
    draft = ("--draft-model", str(FOLDER / "draft"), "--dtype", "float32")
    with serving("serve", str(folder), *draft, "--name", "tiny", path="/health") as address:
        yield f"{address}/v1"


def task(tmp_path, name, **more):
    (tmp_path / "documents.jsonl").write_text("\n".join(map(json.dumps, DOCUMENTS)))
    files = {"data_files": {"test": str(tmp_path / "documents.jsonl")}, "cache_dir": str(tmp_path)}
    data = {"dataset_path": "json", "dataset_kwargs": files, "test_split": "test", "doc_to_text": "{{text}}"}
    return {"task": name} | data | more


@pytest.mark.parametrize("kind", ["local-completions", "local-chat-completions"])
def test_lm_eval_finds_what_it_finds_in_process(kind, address, folder, tmp_path, monkeypatch):
    import lm_eval
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda results: None)
    writes = {"output_type": "generate_until", "generation_kwargs": {"until": ["\n\n"], "max_gen_toks": 16}}
    writes |= {"doc_to_target": "{{goal}}", "metric_list": [{"metric": "exact_match"}]}
    tasks = [task(tmp_path, "completes", **writes)]
    is_chat = kind == "local-chat-completions"
    if not is_chat:
        of_choices = {"doc_to_choice": "{{choices}}", "doc_to_target": "{{label}}", "metric_list": [{"metric": "acc"}]}
        tasks.append(task(tmp_path, "chooses", output_type="multiple_choice", **of_choices))

    def evaluate(model, **keywords):
        results = lm_eval.simple_evaluate(
            model, tasks=tasks, task_manager=TaskManager(include_defaults=False), bootstrap_iters=0, **keywords
        )
        return {name: [sample["resps"] for sample in own] for name, own in results["samples"].items()}

    target, _, tokenizer = embedded_pair()
    tokenizer.chat_template = TEMPLATE
    plain = evaluate(HFLM(target, tokenizer=tokenizer), apply_chat_template=is_chat)
    path = "chat/completions" if is_chat else "completions"
    args = f"model=tiny,base_url={address}/{path},tokenizer={folder},num_concurrent=2,tokenized_requests={not is_chat}"
    served = evaluate(kind, model_args=args, apply_chat_template=is_chat)
    assert served["completes"] == plain["completes"]
    if not is_chat:
        found, expected = (
            [one for sample in answers["chooses"] for choice in sample for one in choice] for answers in (served, plain)
        )
        assert [is_greedy for _, is_greedy in found] == [is_greedy for _, is_greedy in expected]
        assert [value for value, _ in found] == pytest.approx([value for value, _ in expected], abs=1e-3)
