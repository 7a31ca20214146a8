"""What an executor's turn has to match, so that none is malformed (TBSS 3.1): for engines with structured outputs."""

_TEXT = r"\s?[^<\s][^<]*"
_SEARCH = rf"<search>{_TEXT}</search>"
_REPORT = rf"<answer>{_TEXT}</answer>\s?<evidence>{_TEXT}</evidence>"


def turn_pattern(*, searched: bool, may_search: bool) -> str:
    """A regular expression for the next turn: first a search, at last a report, in between either."""
    if not searched:
        return _SEARCH
    return f"({_SEARCH}|{_REPORT})" if may_search else _REPORT
