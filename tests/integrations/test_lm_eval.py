"""lm-eval's model `hf-speculative`, and its clients against our server: what plain `hf` gives, on local tasks, offline."""

import copy
import json
import re
import runpy
import sys
from functools import partialmethod
from importlib.metadata import EntryPoint
from pathlib import Path

import lm_eval
import pytest
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

import hf_speculative as hs
from hf_speculative.embedded import FOLDER
from hf_speculative.integrations.lm_eval import SpeculativeLM
from tests.support import tiny, tongues
from tests.support.cases import a_third
from tests.support.served import TEMPLATE, serving

ROOT = Path(__file__).parents[2]
#: strings of one token and of several; the model writes all of them, in the middle of drafts, too
UNTIL = ["\n\n", "abc import", "Queue(Queue"]
ROWS = [
    ("import os\n", "import sys", ["import sys", "banana"], 0),
    ("class Queue:\n    def __init__(self):\n", " self", ["        self", " 3 4"], 0),
    ("def run(self, ", "name", ["class", "name):"], 1),
    ("def main():\n", "    ", ["\n\n\n\n", "    return"], 1),
    ("import sys\n\n\ndef f(x):\n    return", " x", [" x", " def"], 0),
]
DOCUMENTS = [dict(zip(("text", "goal", "choices", "label"), row, strict=True)) for row in ROWS]


@pytest.fixture(autouse=True)
def no_inventory(monkeypatch):
    """lm-eval would list the machine's packages at the end of each evaluation, for seconds."""
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda results: None)


@pytest.fixture
def tasks(tmp_path):
    (tmp_path / "documents.jsonl").write_text("\n".join(map(json.dumps, DOCUMENTS)))
    files = {"data_files": {"test": str(tmp_path / "documents.jsonl")}, "cache_dir": str(tmp_path)}
    common = {"dataset_path": "json", "dataset_kwargs": files, "test_split": "test", "doc_to_text": "{{text}}"}
    generates = common | {"task": "completes", "output_type": "generate_until", "doc_to_target": "{{goal}}"}
    generates |= {"generation_kwargs": {"until": UNTIL, "max_gen_toks": 32}}
    generates |= {"metric_list": [{"metric": "bleu"}, {"metric": "exact_match"}]}
    judges = common | {"task": "chooses", "output_type": "multiple_choice", "doc_to_choice": "{{choices}}"}
    judges |= {"doc_to_target": "{{label}}", "metric_list": [{"metric": "acc"}]}
    return [generates, judges]


def evaluate(model, tasks, **kwargs):
    only_ours = TaskManager(include_defaults=False)  # to list lm-eval's own tasks takes seconds
    results = lm_eval.simple_evaluate(model, tasks=tasks, task_manager=only_ours, bootstrap_iters=0, **kwargs)
    answers = {name: [sample["resps"] for sample in own] for name, own in results["samples"].items()}
    return results, answers


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 4])
def test_scores_and_answers_are_those_of_plain_hf(pair, tasks, batch_size):
    target, _, tokenizer = pair
    plain, plain_answers = evaluate(HFLM(target, tokenizer=tokenizer, batch_size=batch_size), tasks)
    args = f"pretrained={FOLDER / 'target'},draft_model={FOLDER / 'draft'},num_draft_tokens=4,dtype=float32"
    ours, answers = evaluate("hf-speculative", tasks, model_args=args, batch_size=batch_size, device="cpu")
    assert answers == plain_answers and ours["results"] == plain["results"]
    assert ours["results"]["completes"]["bleu,none"] > 0
    saved = json.loads(json.dumps(ours["config"]["speculative_decoding"]))
    assert saved["draft_model"] == str(FOLDER / "draft") and saved["settings"] == {"num_draft_tokens": 4}
    counted = saved["statistics"]
    assert counted["num_accepted_draft_tokens"] > 10 and counted["num_calls"] == -(-len(DOCUMENTS) // batch_size)
    assert counted["num_target_forwards"] < counted["num_new_tokens"] and "rows" not in counted


@pytest.fixture(scope="module")
def address(pair, tmp_path_factory):
    """Of a server in a process of its own, whose target has a chat template, which repeats what it is told."""
    folder = tmp_path_factory.mktemp("target")
    target, _, tokenizer = copy.deepcopy(pair)
    tokenizer.chat_template = TEMPLATE
    target.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    draft = ("--draft-model", str(FOLDER / "draft"), "--dtype", "float32")
    with serving("serve", str(folder), *draft, "--name", "tiny", path="/health") as address:
        yield f"base_url={address}/v1/{{}},model=tiny,tokenizer={folder},num_concurrent=2"


@pytest.mark.slow
@pytest.mark.parametrize("kind", a_third(["local-chat-completions", "local-completions"]))
def test_scores_of_the_server_are_those_in_process(kind, address, pair, tasks):
    pytest.importorskip("tenacity", reason="lm_eval[api] needs it")
    target, _, tokenizer = copy.deepcopy(pair)
    tokenizer.chat_template, is_chat = TEMPLATE, kind == "local-chat-completions"
    tasks = tasks[:1] if is_chat else tasks  # a chat has no likelihoods
    _, plain = evaluate(HFLM(target, tokenizer=tokenizer), tasks, apply_chat_template=is_chat)
    args = address.format("chat/completions" if is_chat else "completions") + f",tokenized_requests={not is_chat}"
    _, served = evaluate(kind, tasks, model_args=args, apply_chat_template=is_chat)
    assert served["completes"] == plain["completes"]
    if not is_chat:
        found, expected = (
            [one for sample in answers["chooses"] for choice in sample for one in choice] for answers in (served, plain)
        )
        assert [is_greedy for _, is_greedy in found] == [is_greedy for _, is_greedy in expected]
        assert [value for value, _ in found] == pytest.approx([value for value, _ in expected], abs=1e-3)


def test_a_row_of_a_batch_ends_where_it_ends_alone(pair):
    target, draft, tokenizer = pair
    plain, ours = HFLM(target, tokenizer=tokenizer), SpeculativeLM(target, tokenizer=tokenizer, draft_model=draft)
    settings = {"stop": UNTIL, "do_sample": False}

    def generated(lm, texts):
        ids, mask = lm.tok_batch_encode(texts)
        new = lm._model_generate(ids, attention_mask=mask, max_length=ids.shape[1] + 40, **settings)[:, ids.shape[1] :]
        return [[token for token in row if token != tokenizer.pad_token_id] for row in new.tolist()]

    texts = [document["text"] for document in DOCUMENTS]
    alone = [generated(plain, [text])[0] for text in texts]
    assert generated(ours, texts) == alone
    endings = [tokenizer.decode(tokens) for tokens in alone if len(tokens) < 40]
    assert {stop for stop in UNTIL for text in endings if stop in text} == set(UNTIL)


def test_a_tasks_own_sampling_is_seed_for_seed_plain(pair, tasks):
    target, draft, tokenizer = pair
    sampling = {"until": UNTIL, "max_gen_toks": 24, "do_sample": True, "temperature": 0.8}
    tasks = [tasks[0] | {"generation_kwargs": sampling}]
    _, plain = evaluate(HFLM(target, tokenizer=tokenizer), tasks)
    ours = SpeculativeLM(target, tokenizer=tokenizer, draft_model=draft, reproducible=True)
    assert evaluate(ours, tasks)[1] == plain and ours.statistics.num_accepted_draft_tokens > 0
    assert "generate" not in vars(target)


def test_drafts_of_a_task_come_first(pair):
    target, draft, tokenizer = pair
    lm = SpeculativeLM(target, tokenizer=tokenizer, draft_model=draft, num_draft_tokens=2)
    settings = {"until": ["zzz"], "max_gen_toks": 12}
    texts, drafted = [], []
    for own in ({}, {"num_draft_tokens": 5}, {"draft_model": None}):
        lm.statistics = hs.Statistics()
        request = Instance("generate_until", {}, ("import os\n", settings | own), 0)
        texts += lm.generate_until([request], disable_tqdm=True)
        drafted.append(lm.statistics.num_draft_tokens / max(1, lm.statistics.num_spec_steps))
    assert 0 < drafted[0] <= 2 < drafted[1] <= 5 and drafted[2] == 0
    assert len(texts) == 3 and len(set(texts)) == 1


def test_a_draft_with_another_vocabulary_finds_its_tokenizer(pair, tmp_path):
    target, _, tokenizer = pair
    other = tongues.byte_level(400)
    tiny.llama(vocab_size=len(other)).save_pretrained(tmp_path / "draft")
    other.save_pretrained(tmp_path / "draft")
    lm = SpeculativeLM(target, tokenizer=tokenizer, draft_model=str(tmp_path / "draft"), num_draft_tokens=3)
    assert lm._speculating.options["draft_tokenizer"].get_vocab() == other.get_vocab()
    request = Instance("generate_until", {}, ("def main():\n", {"until": ["\n\n"], "max_gen_toks": 12}), 0)
    assert lm.generate_until([request]) == HFLM(target, tokenizer=tokenizer).generate_until([request])
    assert lm.statistics.num_draft_tokens > 0


@pytest.mark.parametrize("source", [{"prompt_lookup_num_tokens": 6}, {"draft_model": "suffix", "num_draft_tokens": 4}])
def test_without_a_draft_model(pair, source):
    target, _, tokenizer = pair
    lm = SpeculativeLM(target, tokenizer=tokenizer, **source)
    request = Instance("generate_until", {}, ("x = [1, 2, 1, 2, 1, 2, ", {"until": ["]"], "max_gen_toks": 24}), 0)
    assert lm.generate_until([request]) == HFLM(target, tokenizer=tokenizer).generate_until([request])
    assert lm.statistics.num_accepted_draft_tokens > 0
    assert lm.get_model_info()["speculative_decoding"]["draft_model"] == source.get("draft_model")


@pytest.mark.parametrize(
    "options, error, words",
    [
        ({"draft_modle": "x"}, TypeError, "did you mean `draft_model`"),
        ({"draft_model": "x", "num_draft_token": 3}, TypeError, "did you mean `num_draft_tokens`"),
        ({"draft_model": "x", "assistant_model": "y"}, ValueError, "mean the same"),
        ({"draft_model": "./no/such/folder"}, ValueError, "no/such/folder"),
        ({}, ValueError, "no source of drafts"),
        ({"num_draft_tokens": 3}, ValueError, "`num_draft_tokens=3` has no effect"),
        ({"prompt_lookup_num_tokens": 3, "attn_implementation": "eager"}, TypeError, "loaded already"),
    ],
)
def test_what_cannot_work_is_met_before_any_request(pair, options, error, words, monkeypatch):
    is_named = "draft_model" in options or "draft_modle" in options
    if is_named:
        monkeypatch.setattr(HFLM, "__init__", lambda *args, **kwargs: pytest.fail("the target was loaded"))
    with pytest.raises(error, match=words):
        SpeculativeLM("some/target" if is_named else pair[0], tokenizer=pair[2], **options)


def test_the_entry_point_is_the_registered_class():
    group, name, value = re.search(
        r'^\[project\.entry-points\."(.+)"\]\n(\S+) = "(\S+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE
    ).groups()
    assert group == "lm_eval.models" and EntryPoint(name, value, group).load() is get_model(name) is SpeculativeLM


def test_the_command(tasks, tmp_path, monkeypatch, capsys, caplog):
    (tmp_path / "completes.yaml").write_text(json.dumps(tasks[0]))  # JSON is YAML
    models = f"pretrained={FOLDER / 'target'},draft_model={FOLDER / 'draft'},num_draft_tokens=4"
    arguments = {"model": "hf-speculative", "model_args": models, "device": "cpu", "batch_size": "2", "limit": "2"}
    arguments |= {"tasks": "completes", "include_path": str(tmp_path), "output_path": str(tmp_path / "results")}
    command = [part for name, value in arguments.items() for part in (f"--{name}", value)]
    monkeypatch.setattr(sys, "argv", ["hf_speculative.integrations.lm_eval", *command])
    monkeypatch.setattr("lm_eval.__main__.setup_logging", lambda: None)  # its handler would outlive this test
    monkeypatch.setattr(TaskManager, "__init__", partialmethod(TaskManager.__init__, include_defaults=False))
    with caplog.at_level("INFO", "lm_eval"):
        runpy.run_module("hf_speculative.integrations.lm_eval", run_name="__main__")
    assert "|completes|" in capsys.readouterr().out and "of the draft tokens accepted" in caplog.text
    saved = json.loads(next((tmp_path / "results").rglob("results*.json")).read_text())
    assert saved["config"]["speculative_decoding"]["statistics"]["num_draft_tokens"] > 0
