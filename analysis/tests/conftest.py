"""Settings of the tests: `pytest --hypothesis-profile=long -k fuzz` fuzzes for minutes."""

from hypothesis import settings

# No deadlines: machines are shared, and a pause of theirs is no finding.
settings.register_profile("untimed", settings(), deadline=None)
settings.load_profile("untimed")
settings.register_profile("long", settings(), max_examples=100_000)
