import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test needs the hub
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch
import transformers

torch.set_num_threads(1)  # two workers on two cores
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


@pytest.fixture
def bert():
    from espalier.contract import tiny

    return tiny("bert", "AutoModelForSequenceClassification")
