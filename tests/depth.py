"""How much tests try: `make test` what finds a broken contract, `make test-deep` all, and more."""

from itertools import product

from hypothesis import HealthCheck, Phase, settings

#: Whether all combinations run, and twenty times as many examples, other ones each time.
DEEP = settings.default.max_examples >= 1000


def examples(count):
    """Run `count` examples, the same ones each time, and shrink failures."""
    return settings(
        max_examples=count * 20 if DEEP else count,
        derandomize=not DEEP,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
    )


def rotate(cases, *ways):
    """Return tuples of a case and one of each of `ways`: each case once, with the ways in turn.

    After each turn, the ways shift by one, so cases that recur meet other ways. In deep tests, all
    cases meet all ways.
    """
    if DEEP:
        return list(product(cases, *ways))
    every = list(product(*ways))
    return [(case, *every[(i + i // len(every)) % len(every)]) for i, case in enumerate(cases)]
