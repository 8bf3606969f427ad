"""Commands as a user types them."""

import pytest
from typer.testing import CliRunner

from espalier.cli import app, main


def typed(*words):
    """What a command prints, that ends well."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output + str(done.exception)
    return done.stdout


def refused(capsys, monkeypatch, *words):
    """What a wrong command says, and that it is a sentence rather than a traceback."""
    monkeypatch.setattr("sys.argv", ["espalier", *(str(word) for word in words)])
    with pytest.raises(SystemExit) as end:
        main()
    said = capsys.readouterr().err
    assert end.value.code == 1, said
    assert "Traceback" not in said
    return said
