"""Settings of the tests: `pytest --hypothesis-profile=long -k fuzz` fuzzes for minutes."""

from hypothesis import settings

settings.register_profile("long", max_examples=100_000)
