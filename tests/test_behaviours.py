"""What transformers 4 tested of pruned heads holds for every architecture that is supported."""

import pytest

from espalier.architectures.table import architectures
from espalier.testing import behaviours as suite
from espalier.testing import check_behaviours
from espalier.testing.behaviours import BEHAVIOURS
from espalier.testing.tiny import tiny

VISION = {"clip_vision_model", "deit", "dinov2", "vit"}
RECURRENT = {"all_attention", "transformer_xl"}
ENCODERS = {"albert", "clip", "clip_text_model", "deberta-v2", "distilbert", "esm", "modernbert", "mpnet"}
# behaviour -> the types that have no such thing, also unpruned
NOT_APPLICABLE = {
    "heads_are_pruned": {"olmo2"},  # its heads can be gated only
    "pruned_heads_are_saved": {"olmo2"},
    "cuts_accumulate": {"olmo2"},
    "maps_keep_their_place": {"olmo2"},
    "fast_attention_has_no_maps": {"bloom", "deberta-v2", "gemma2", "gptj", "mpnet", "roformer"},
    "checkpoints_gradients": {"albert", "mpnet"} | RECURRENT,
    "resizes_embeddings": {"clip", "wav2vec2"} | VISION | RECURRENT,  # clusters have no end to add to
    **{name: {"wav2vec2"} | VISION | ENCODERS for name in BEHAVIOURS if name.startswith("generat")},
}


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
@pytest.mark.parametrize("kind", sorted(architectures()))
def test_behaviour(kind, behaviour):
    applies = BEHAVIOURS[behaviour](kind) is not False
    assert applies == (kind not in NOT_APPLICABLE.get(behaviour, ()))


def test_the_behaviours_of_one_type():
    found = check_behaviours("gpt2")
    assert list(found) == list(BEHAVIOURS)
    assert all(found.values())
    assert len(BEHAVIOURS) >= 15


@pytest.mark.parametrize(
    ("behaviour", "broken"),
    [
        ("heads_are_pruned", "prune_heads"),
        ("cuts_accumulate", "prune_heads"),
        ("gates_mask_heads", "masked"),
        ("resizes_embeddings", "_saved_and_loaded"),
    ],
)
def test_a_behaviour_can_fail(behaviour, broken, monkeypatch):
    replaced = {
        "prune_heads": lambda model, heads, **_: model,
        "masked": lambda model, mask: suite.gated([]),
        "_saved_and_loaded": lambda _: tiny("bert"),
    }
    monkeypatch.setattr(suite, broken, replaced[broken])
    with pytest.raises((AssertionError, IndexError)):
        BEHAVIOURS[behaviour]("bert")
