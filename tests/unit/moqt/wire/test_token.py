import pytest

from kvcs.moqt.codepoints import TokenAliasType
from kvcs.moqt.wire import Token


def test_token_never_shows_its_value():
    token = Token.register(5, b"secret", token_type=7)

    assert "secret" not in repr(token)
    assert "alias=5" in repr(token)


@pytest.mark.parametrize(
    "fields",
    [
        {"alias": 1},
        {"token_type": None},
        {"alias_type": TokenAliasType.USE_ALIAS, "token_type": None},
        {"alias_type": TokenAliasType.USE_ALIAS, "alias": 1},
        {"alias_type": TokenAliasType.DELETE, "alias": 1, "token_type": None, "value": b"x"},
        {"alias_type": TokenAliasType.REGISTER},
    ],
)
def test_fields_that_do_not_belong_to_the_form_are_refused(fields):
    with pytest.raises(ValueError, match=r"belong|no value"):
        Token(**fields)
