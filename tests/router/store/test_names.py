"""Names of recent requests: none is forgotten within a day, and the database is rarely asked for
others.
"""

from hypothesis import given
from hypothesis import strategies as st

from router.store import Database, LogJournal
from router.store.names import UsedNames
from router.trace.identity import DEFAULT_TENANT
from tests.router.store.entries import NOW, start
from tests.router.store.stored import run


@given(st.sets(st.tuples(st.text(), st.text())), st.tuples(st.text(), st.text()))
def test_every_used_name_is_known(names: set[tuple[str, str]], other: tuple[str, str]) -> None:
    """Very few other names are taken for a used one."""
    used = UsedNames()
    for name in names:
        used.add(name)
    assert all(name in used for name in names)
    assert (other in used) == (other in names)


async def test_a_new_gateway_knows_earlier_names(database: Database) -> None:
    """A request that was answered before its start gets the same run."""
    async with LogJournal.writing(database) as journal:
        await journal.begin(start("run-1", request_id="mine"))
        await journal.finish(run("run-1", NOW, request_id="mine", tenant=DEFAULT_TENANT))
    async with LogJournal.writing(database) as journal:
        again = await journal.begin(start("run-2", request_id="mine"))
    assert getattr(again, "run_id", None) == "run-1"
