"""Alphabets of random texts for the tests of searches: few characters, so that words meet."""

from __future__ import annotations

ALPHABETS = (
    b"a-",
    b"a-'",
    b"ab- \n",
    b"ab_-+ \n\r",
    b"a\xe9\xff- \n",
    b"--a ",
)
