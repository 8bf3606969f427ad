"""The page of a run while it goes on: on this machine only, and as new as the rows."""

import json
import re
import socket
import threading
import urllib.error
import urllib.request

import pytest
from commands import ended
from test_results import HEAD, ROWS

from espalier.core.errors import FolderError, InvalidValueError
from espalier.reports.server import HOST, Watched, is_free, open_server


def write(folder, rows):
    folder.mkdir(exist_ok=True)
    (folder / "run.json").write_text(json.dumps(HEAD))
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def free_port():
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


@pytest.fixture
def served(tmp_path):
    folder = write(tmp_path / "run", ROWS[:1])
    server = open_server(folder, free_port())
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield folder, f"http://{HOST}:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()


def read(address, **headers):
    request = urllib.request.Request(address, headers=headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.read().decode()


def test_the_page_follows_the_rows(served):
    folder, address = served
    assert "http-equiv=refresh" in read(address)  # nothing is pruned yet
    before = read(address + "state")
    write(folder, ROWS)
    now = read(address + "state")
    assert now != before
    page = read(address)
    found = json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.S)[1])
    assert found["live"] == now
    assert [point["k"] for point in found["runs"][0]["points"]["gnorm"]] == [0, 1, 2, 4]


def test_only_this_machine_is_answered_and_only_two_addresses(served):
    folder, address = served
    for wrong, code in ((address + "run.json", 404), (address + "../run/rows.jsonl", 404)):
        with pytest.raises(urllib.error.HTTPError) as error:
            read(wrong)
        assert error.value.code == code
    with pytest.raises(urllib.error.HTTPError) as error:
        read(address, Host="elsewhere.example:80")
    assert error.value.code == 403
    assert read(address.replace(HOST, "localhost") + "state") == Watched(folder).state()


def test_a_port_in_use_and_the_next_free_one(tmp_path, capsys, monkeypatch):
    folder = write(tmp_path / "run", ROWS)
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InvalidValueError) as error:
            open_server(folder, port)
        assert error.value.parameter == "port"
        free = int(re.search(r"Port (\d+) is free", str(error.value))[1])
        assert free > port
        assert is_free(free)
        assert not is_free(port)
        assert "--port" in ended(capsys, monkeypatch, "watch", folder, "--port", port)


def test_a_folder_that_is_no_run(tmp_path):
    for name in ("nothing", "model"):
        (tmp_path / "model").mkdir(exist_ok=True)
        (tmp_path / "model" / "config.json").write_text("{}")
        with pytest.raises(FolderError):
            Watched(tmp_path / name)
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / ".lock").touch()
    assert "http-equiv=refresh" in Watched(begun).page()
