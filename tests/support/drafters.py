"""One of each shipped drafter that needs no help from the target; what suffixes propose, by brute force."""

from hf_speculative.drafting import DraftModel, DynamicTreeDrafter
from hf_speculative.drafting.hybrid import HybridDrafter
from hf_speculative.drafting.model_drafter import StringMatch, TokenIntersection
from hf_speculative.drafting.proposers import CorpusSuffix, PromptSuffix, Proposer, Recycling
from hf_speculative.drafting.suffix.index import MOST_VOTES
from hf_speculative.drafting.suffix.store import SuffixStore
from hf_speculative.drafting.tree_drafter import TreeDrafter
from hf_speculative.models import RaggedModel
from hf_speculative.tokenizers.alignment import Translation
from tests.support import tiny, tongues

LETTERS = "".join(map(chr, range(0x3041, 0x3041 + tiny.VOCAB)))
TOKENIZERS = tongues.characters(LETTERS), tongues.characters("abc" + LETTERS[::-1])


def in_other_letters(kind, draft):
    """A drafter for a vocabulary of other ids."""
    draft = tongues.moved(draft, *TOKENIZERS)
    return kind(RaggedModel(draft, clamp_ids=True), Translation(*TOKENIZERS, tiny.VOCAB, tiny.VOCAB + 3))


def draft_model(draft):
    return DraftModel(RaggedModel(draft, clamp_ids=True))


def beams(draft):
    return DynamicTreeDrafter(draft_model(draft), top_k=3)


class Knowing(Proposer):
    """Knows what follows a token, and how likely."""

    def __init__(self, following):
        self.following = following

    def place_after(self, lane, text):
        return text[-1]

    def children(self, place):
        return [(chance, token, token) for token, chance in self.following.get(place, {}).items()]

    def prior(self, kind):
        return kind


def suffix_drafter(store=None, max_factor=1.0, **settings):
    """Copies from the row's own text and, if there is one, from a store."""
    settings["max_factor"] = max_factor
    others = [] if store is None else [CorpusSuffix(store, **settings)]
    return TreeDrafter([PromptSuffix(**settings), *others])


def brute_force(documents, context, num_tokens, most=None, least=2):
    """The longest match of `least` tokens or more, and what followed it at most `MOST_VOTES` places."""
    for length in range(min(len(context), most or len(context)), least - 1, -1):
        found = [
            document[i : i + num_tokens]
            for document in documents
            for i in range(length, len(document) + (document is not context))
            if document[i - length : i] == context[-length:]
        ]
        if found:
            return length, found[-MOST_VOTES:]
    return 0, []


MAKE_DRAFTER = {
    DynamicTreeDrafter: beams,
    DraftModel: draft_model,
    HybridDrafter: lambda draft: HybridDrafter(TreeDrafter([Recycling(), PromptSuffix()]), beams(draft)),
    StringMatch: lambda draft: in_other_letters(StringMatch, draft),
    TreeDrafter: lambda draft: TreeDrafter([Recycling(), PromptSuffix(), CorpusSuffix(SuffixStore())]),
    TokenIntersection: lambda draft: in_other_letters(TokenIntersection, draft),
}
