"""Commands as a user types them."""

import json

import pytest
from typer.testing import CliRunner

from espalier.cli import app, main


def typed(*words, **options):
    """Return what a command prints, and check that it ends well."""
    done = CliRunner().invoke(app, [str(word) for word in words], **options)
    assert done.exit_code == 0, done.output + str(done.exception)
    return done.stdout


def data(*words):
    """Return what a command prints as JSON."""
    return json.loads(typed(*words, "--json"))


def ended(capsys, monkeypatch, *words, code=None):
    """Return the message of a command that fails without a traceback; by default with code 1 or 2."""
    monkeypatch.setattr("sys.argv", ["espalier", *(str(word) for word in words)])
    with pytest.raises(SystemExit) as end:
        main()
    message = capsys.readouterr().err
    assert end.value.code in ((1, 2) if code is None else (code,)), message
    assert "Traceback" not in message
    return " ".join(message.split())
