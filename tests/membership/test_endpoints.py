import pytest

from dunlin.membership.endpoints import parse_endpoints, split_endpoint


def test_endpoints_are_parsed() -> None:
    assert parse_endpoints("a:1, http://b.example:2379/ ,[::1]:3") == ("a:1", "b.example:2379", "[::1]:3")


@pytest.mark.parametrize(
    "text", ["", "a", "a:", ":1", "a:0", "a:65536", "a:x", "a:1,,b:2", "a:1/b", "::1:2", "[]:1", "u@a:1", "http://a"]
)
def test_wrong_endpoints_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not host:port"):
        parse_endpoints(text)


def test_a_scheme_does_not_choose_tls() -> None:
    with pytest.raises(ValueError, match="'https://a:1': write host:port; TLS is chosen by its own flags"):
        parse_endpoints("b:2,https://a:1")


def test_the_same_endpoint_twice_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="a:1 is given twice"):
        parse_endpoints("a:1,b:1,http://a:1")


@pytest.mark.parametrize(("endpoint", "expected"), [("a.example:1", ("a.example", 1)), ("[::1]:3", ("::1", 3))])
def test_an_endpoint_is_split_as_sockets_want_it(endpoint: str, expected: tuple[str, int]) -> None:
    assert split_endpoint(endpoint) == expected
