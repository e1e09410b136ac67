"""`python -m hf_speculative.integrations.lm_eval`: lm-eval's own command, with the model `hf-speculative` registered."""

from lm_eval.__main__ import cli_evaluate

if __name__ == "__main__":
    cli_evaluate()
