"""What to expect of a run of its size, said before it begins. From published runs, and from our own (docs/training.md)."""

#: heads for targets of 7 to 9 billion parameters, trained from nothing: answers learned from, and acceptance length reported.
#: 20 and 5,400 samples: 1bit-MONSTER#938, #1509; 5,000: speculators' own demo (DFlash and P-EAGLE, 1.47 and 1.53); 100,000:
#: speculators#1135 (DSpark, 1B); 500,000: EAGLE-3 by speculators and EAGLE-3.1 (2.7 to 3.0).
PUBLISHED = ((20, "1.0"), (5_000, "1.5"), (100_000, "3.1 (for a 1B target)"), (500_000, "2.7 to 3.0"))
#: kinds of heads that begin with random layers
HEADS = ("eagle3", "dflash", "jetspec")
#: below, heads learned nothing that held-out prompts showed
NO_CHANCE = 100
#: below, published heads stayed near 1.5
FEW = 20_000


def prospects(kind: str, num_examples: int, target_parameters: int) -> list[str]:
    """Sentences about what a run can bring; empty if there is nothing to warn of.

    Args:
        kind: of the head, as in `Settings.kind`.
        num_examples: different answers to learn from.
    """
    found = []
    is_small_target = target_parameters < 100_000_000
    if kind in HEADS and num_examples < NO_CHANCE:
        found.append(
            f"{num_examples} answers are too few for a head: published runs with 20 accepted nothing on other prompts. Expect "
            "an acceptance length close to 1. Give more prompts, or more answers to each (`answers_per_prompt`)."
        )
    elif kind in HEADS and num_examples < FEW and not is_small_target:
        told = "; ".join(f"{count:,} answers: {length}" for count, length in PUBLISHED)
        found.append(
            f"{num_examples:,} answers are few for a head. Acceptance lengths that others report for targets of about 8B "
            f"parameters: {told}. Below {FEW:,} answers, do not expect a speedup."
        )
    if kind == "layers" and num_examples < NO_CHANCE:
        found.append(f"{num_examples} answers are few for a model that lost most of its layers: expect little.")
    return found
