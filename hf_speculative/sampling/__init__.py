"""From logits to tokens: samplers, logits processors and what they remember, guidance, stopping criteria."""
