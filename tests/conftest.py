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
    from espalier.testing.tiny import tiny

    return tiny("bert", "AutoModelForSequenceClassification")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a small model and a table of texts, for commands."""
    import toys

    folder = tmp_path_factory.mktemp("work")
    toys.folder_with_model(folder / "model")
    toys.table_of(folder / "data.tsv", n=240)
    return folder
