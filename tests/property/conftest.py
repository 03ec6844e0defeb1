"""How many examples Hypothesis makes: a third in every run, all of them in the soak.

``pytest tests/property --hypothesis-profile=soak`` is for the soak.
"""

from hypothesis import settings

settings.register_profile("usual", max_examples=33)
settings.register_profile("soak", max_examples=100)
settings.load_profile("usual")
