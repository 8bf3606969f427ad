"""Upload to the hub, with a hub that is not one."""

import json
from types import SimpleNamespace

import huggingface_hub
import pytest
import toys
from commands import data, ended

import espalier
from espalier.core.errors import FolderError, InvalidValueError, UnsupportedError
from espalier.exporters import push as module


class FakeApi:
    """The calls that are used, and what they were given."""

    private = True

    calls = None
    fails = None

    def create_repo(self, repo_id, *, private, exist_ok):
        self.calls.append(("create", repo_id, private, exist_ok))
        if self.fails:
            raise self.fails
        return FakeUrl(f"https://hub.invalid/{repo_id}")

    def repo_info(self, repo_id):
        return SimpleNamespace(private=self.private)

    def upload_folder(self, *, repo_id, folder_path, commit_message, ignore_patterns):
        from huggingface_hub.utils import filter_repo_objects

        names = [p.relative_to(folder_path).as_posix() for p in folder_path.rglob("*") if p.is_file()]
        kept = sorted(filter_repo_objects(names, ignore_patterns=ignore_patterns))
        self.calls.append(("upload", repo_id, kept))


class FakeUrl(str):
    @property
    def repo_id(self):
        return self.partition("invalid/")[2]


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setattr(FakeApi, "calls", [])
    monkeypatch.setattr(FakeApi, "fails", None)
    monkeypatch.setattr(huggingface_hub, "HfApi", FakeApi)
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "token")
    monkeypatch.setattr(module, "is_reachable", lambda: True)
    return FakeApi


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("push") / "m"
    toys.folder_with_model(place)
    (place / "README.md").write_text("# m\n")
    (place / "logs").mkdir()
    (place / "logs" / "events").write_text("")
    return place


def test_a_folder_is_uploaded_without_logs_and_records_of_this_machine(hub, folder):
    assert espalier.push(folder, "me/small", private=True) == "https://hub.invalid/me/small"
    (created, uploaded) = hub.calls
    assert created == ("create", "me/small", True, True)
    assert uploaded[1] == "me/small"
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= set(uploaded[2])
    assert not [name for name in uploaded[2] if name.startswith((".", "logs"))]


def test_on_the_command_line(hub, folder):
    assert data("push", folder, "me/small") == {"url": "https://hub.invalid/me/small"}
    assert hub.calls[0] == ("create", "me/small", False, True)


@pytest.mark.parametrize("name", ["a/b/c", "me/sm all", "", "me/-x", "x" * 200])
def test_wrong_names(hub, folder, name):
    with pytest.raises(InvalidValueError):
        espalier.push(folder, name)
    assert not hub.calls


def test_what_is_not_a_model(hub, tmp_path):
    for place in (tmp_path, tmp_path / "missing"):
        with pytest.raises(FolderError):
            espalier.push(place, "me/x")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(FolderError):
        espalier.push(tmp_path, "me/x")
    assert not hub.calls


def test_without_a_token_or_a_hub(hub, folder, monkeypatch, capsys):
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    with pytest.raises(UnsupportedError):
        espalier.push(folder, "me/x")
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "token")
    monkeypatch.setattr(module, "is_reachable", lambda: False)
    ended(capsys, monkeypatch, "push", folder, "me/x")
    assert not hub.calls


def test_what_the_hub_refuses(hub, folder, monkeypatch):
    monkeypatch.setattr(hub, "fails", RuntimeError("403 Forbidden:\n you cannot"))
    with pytest.raises(UnsupportedError) as error:
        espalier.push(folder, "other/x")
    assert "403" in str(error.value)


def test_the_fake_is_called_as_the_real_one():
    from inspect import signature

    real = huggingface_hub.HfApi
    for name in ("create_repo", "upload_folder"):
        taken = set(signature(getattr(FakeApi, name)).parameters)
        assert taken <= set(signature(getattr(real, name)).parameters)


def test_a_public_repository_is_not_taken_for_a_private_one(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(FakeApi, "private", False)
    toys.folder_with_model(tmp_path / "small")
    with pytest.raises(UnsupportedError):
        espalier.push(tmp_path / "small", "me/small", private=True)
    assert [call[0] for call in FakeApi.calls] == ["create"]
