def print_evaluation(console, evaluation):
    for s in evaluation.settings:
        x = evaluation.totals(s)
        console.print(
            s.name, x.num_prompts, x.num_new_tokens, round(x.tokens_per_second, 1), x.speedup, x.num_identical, x.scores
        )
    for r in evaluation.recommendations:
        console.print(str(r))
