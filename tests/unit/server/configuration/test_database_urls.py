"""URLs of databases that libpq would read otherwise than they were meant."""

import pytest

from server.configuration.environment import load
from server.errors import ConfigError


@pytest.mark.parametrize(
    "url", ["postgresql://me:p@s3cret@db/x", "postgresql://me:p/s3cret@db/x?sslmode=require"]
)
def test_password_that_is_not_percent_encoded_is_refused_with_the_way_to_write_it(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load({"database_url": url}, {})
    sentence = str(refused.value)
    assert "percent-encode" in sentence
    assert "%40 for @" in sentence
    assert "s3cret" not in sentence
