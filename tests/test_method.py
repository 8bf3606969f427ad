"""Methods, targets and levels as they are written: gnorm:static, weights+head, 0.5:0.8:0.05."""

import pytest

from espalier.core.errors import InvalidValueError, UnknownNameError
from espalier.experiment.levels import parse_levels
from espalier.experiment.method import parse_method, parse_methods, parse_target


def test_levels():
    assert parse_levels("0.5:0.8:0.05", "weights") == [0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8]
    assert parse_levels("0.8,0.5", "weights") == parse_levels([0.8, 0.5], "heads") == [0.5, 0.8]
    assert parse_levels(0.5, "heads") == [0.5]
    assert parse_levels(None, "heads") == [1.0]
    assert len(parse_levels(None, "weights")) > 1
    for wrong in (
        "",
        "0.5:0.8",
        "0.8:0.5:0.1",
        "1.1",
        "0",
        "half",
        "0.5:0.8:0",
        0,
        -1,
        [],
        [0.5, 2],
        object(),
    ):
        with pytest.raises(InvalidValueError) as error:
            parse_levels(wrong, "weights")
        assert error.value.parameter == "remove"


def test_targets():
    assert parse_target("weights+norms+embeddings") == ("weights", ("embeddings", "norms"))
    assert parse_target("heads") == ("heads", ())
    with pytest.raises(UnknownNameError) as error:
        parse_target("weight")
    assert (error.value.parameter, error.value.nearest) == ("target", "weights")
    with pytest.raises(UnknownNameError) as error:
        parse_target("weights+heads")
    assert error.value.nearest == "head"
    with pytest.raises(InvalidValueError):
        parse_target("heads+norms")


def test_methods_of_units():
    made = {m.label: m for m in parse_methods("gnorm,taylor:static:reverse,random:4,entropy:form=C", "heads")}
    static = made["taylor:static:reverse"]
    assert made["gnorm"].rescore
    assert (static.rescore, static.reverse) == (False, True)
    assert (made["random:4"].trials, made["random:4"].numbers()) == (4, [0, 1, 2, 3])
    assert (made["entropy:form=C"].rescore, made["entropy:form=C"].options) == (False, {"form": "C"})
    assert next(m.label for m in parse_methods(None, "heads")) == "gnorm"


@pytest.mark.parametrize(
    ("text", "target", "parameter", "nearest"),
    [
        ("", "heads", "methods", None),
        (":static", "heads", None, None),
        ("gnrom", "heads", None, "gnorm"),
        ("gnorm:statc", "heads", "method", "static"),
        ("gnorm:objectve=loss", "heads", "method", "objective"),
        ("gnorm:25", "heads", "method", None),
        ("gnorm,gnorm", "heads", "methods", None),
        ("gnorm:every=0", "heads", "method", None),
        ("gnorm:step=4:every=6", "heads", "method", None),
        ("taylor:scope=2:4", "heads", "scope", None),
        ("gnorm", "neurons", "method", None),
        ("gnorm", "weights", "method", None),
        ("magnitude:greedy", "weights", "method", None),
        ("taylor:step=2", "weights", "method", None),
        ("magnitude:scope=layers", "weights", "scope", "layer"),
        ("magnitude:scope=4:2", "weights", "scope", None),
        ("movement", "weights", "epochs", None),
    ],
)
def test_wrong_methods(text, target, parameter, nearest):
    with pytest.raises(InvalidValueError) as error:
        parse_methods(text, target)
    if parameter:
        assert error.value.parameter == parameter
    assert getattr(error.value, "nearest", None) == nearest


def test_scopes_and_learned_scores():
    (inner,) = parse_methods("wanda:sequential=2:4:scope=2:4", "weights")
    assert (inner.options, inner.scope) == ({"sequential": "2:4"}, "2:4")
    scopes = [one.scope for one in parse_methods("magnitude,wanda,wanda:scope=2:4,sparsegpt", "weights")]
    assert scopes == ["global", "row", "2:4", "layer"]
    assert parse_methods("movement", "weights", trained=True)[0].learned
    with pytest.raises(InvalidValueError):
        parse_methods("movement:lr=2", "weights", trained=True)
    assert "movement" in [m.label for m in parse_methods(None, "weights", trained=True)]


@pytest.mark.parametrize(
    ("label", "parameter"),
    [
        *(("kl:draws=x", "draws"), ("kl:draws=1.5", "draws"), ("kl:draws=true", "draws")),
        *(
            ("kl:temperature=hot", "temperature"),
            ("taylor:signed=2", "signed"),
            ("gnorm:objective=3", "objective"),
        ),
    ],
)
def test_options_are_of_the_kind_that_a_criterion_names(label, parameter):
    with pytest.raises(InvalidValueError) as error:
        parse_method(label, "heads")
    assert error.value.parameter == parameter


def test_numbers_of_any_kind_are_numbers():
    assert parse_method("gnorm:order=1", "heads").options == {"order": 1}
    assert parse_method("kl:temperature=2", "heads").options == {"temperature": 2}
    assert parse_method("gnorm:order=inf", "heads").options["order"] == float("inf")
