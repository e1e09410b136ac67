"""The commands card, export-generate and export."""

import json

import pytest
import torch
from huggingface_hub import ModelCard

from hf_speculative.compatibility.fit import made_for
from hf_speculative.heads import load_head
from hf_speculative.hub.export import export_head
from tests.support import heads, tiny
from tests.support.command import run_command


def test_commands(results, tmp_path):
    printed = run_command("card", f"code={results / 'code.jsonl'}", f"chat={results / 'chat.jsonl'}")
    assert printed.exit_code == 0 and "### chat, Greedy decoding" in printed.output
    assert ModelCard(printed.output).data.tags
    assert run_command("card", results / "code.jsonl", "-o", tmp_path, "--draft-name", "org/draft").exit_code == 0
    assert "draft_model='org/draft'" in (tmp_path / "README.md").read_text()
    local = run_command("card", results / "code.jsonl", "--target-name", "org/target", "--draft-name", tmp_path)
    assert "--draft-name gives its name on the Hub" in local.stderr and "--target-name" not in local.stderr
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo" / "speculative_config.json").write_text('{"draft_model": "org/draft"}')
    exported = run_command("export-generate", tmp_path / "repo", "--repo-id", "org/repo")
    assert exported.exit_code == 0 and (tmp_path / "repo" / "custom_generate" / "generate.py").exists()
    defaults = (tmp_path / "repo" / "custom_generate" / "defaults.py").read_text()
    assert "DRAFT_MODEL: str | None = 'org/draft'" in defaults


def test_what_commands_refuse(results):
    file = results / "code.jsonl"
    for args, message in (
        (("card", f"code={file}", results / "chat.jsonl"), "name the use case of every file"),
        (("card", f"a={file}", f"a={file}"), "two files for one use case"),
        (("card", results / "nofile"), "nofile is not there: name one that `hf-speculative eval --results` wrote"),
        (("card", file, "-o", "/dev/null"), "/dev/null"),
    ):
        result = run_command(*args)
        assert result.exit_code == 2 and message in result.output, args


@torch.no_grad()
def test_what_cannot_be_exported(tmp_path):
    tiny.llama().save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match="model holds no draft head"):
        export_head(tmp_path / "model", tmp_path / "out")
    head = heads.eagle3(tiny.llama(), norm_before_residual=True)
    with pytest.raises(ValueError, match="the layout 'eagle' has no place for this head"):
        export_head(head, tmp_path / "out", "eagle")
    with pytest.raises(ValueError, match="the layout 'eagle' has no field for it"):
        export_head(heads.FIXTURES / "eagle3_safeailab", tmp_path / "out", "eagle", target_name="org/target")
    assert not (tmp_path / "out").exists()
    export_head(head, tmp_path / "out")
    assert load_head(tmp_path / "out").config.norm_before_residual


@pytest.mark.parametrize("name", ["eagle3_safeailab", "dflash_zlab", "eagle3_speculators_llama"])
def test_the_targets_name(name, tmp_path):
    """vLLM finds the target by it; it stays when the head is written once more, and `check` compares it."""
    source, folder, again = heads.FIXTURES / name, tmp_path / "head", tmp_path / "again"
    plain = run_command("export", str(source), str(folder))
    says = "names no target" in plain.output.replace("\n", " ")
    assert plain.exit_code == 0 and says is (made_for(load_head(folder)) is None)
    head = load_head(source)
    assert head.config.name_or_path == head.name_or_path == str(source), "by which `check` calls it"
    result = run_command("export", str(source), str(folder), "--target-name", "org/target")
    assert result.exit_code == 0 and "names no target" not in result.output
    export_head(folder, again)
    assert all(made_for(load_head(path)) == "org/target" for path in (folder, again))
    config = json.loads((again / "config.json").read_text())["speculators_config"]
    assert config["verifier"]["name_or_path"] == "org/target" and config["proposal_methods"]
