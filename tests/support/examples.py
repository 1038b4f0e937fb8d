"""How many examples the property tests try: a share of them in CI, all in a soak run.

pytest --hypothesis-profile soak
"""

from hypothesis import settings

_WHOLE = 100  # examples; hypothesis's own default, which a profile's is a share of
_LEAST = 3
PROFILES = {"ci": 25, "soak": _WHOLE}


def register_profiles() -> None:
    """Make the profiles known, and load the one for CI."""
    for name, share in PROFILES.items():
        settings.register_profile(
            name, deadline=None, print_blob=True, max_examples=share
        )
    settings.load_profile("ci")


def examples(count: int) -> int:
    """Return the profile's share of a number of examples."""
    return max(min(count, _LEAST), count * settings.default.max_examples // _WHOLE)
