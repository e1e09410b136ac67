"""The commands card and export-generate."""

from huggingface_hub import ModelCard

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
