"""Tables filled from a script, in otherwise real runs."""

import asyncio
from collections.abc import Sequence

from router.runs import RequestOptions, RunLifecycle
from router.runs.lifecycle import RunRequest
from router.table import TableLimits, TableRequest
from router.table.assembly import Assembly
from router.table.conditions import with_conditions
from router.trace import Execution, Run
from router.trace.table import Ask, RowKey, Schema
from router.trace.values import OnEvent, Planned, Reported, RowChanged, SubQueryDispatched, TableRun
from tests.router.table.reports import discovery, executed, fill

KROUROU = "Krurou: Krurou was founded in 1200 by Ana. It is old."
BEL = "Bel: Bel was founded in 900."
ANNALS = "Annals: Bo was a founder."
REGISTER = "Register: The cities of Vorland are Krurou and Bel."
SCRIPT = (
    (discovery(1), executed("| city |\n|---|\n| Krurou |\n| Bel |", REGISTER)),
    (discovery(2), executed("- Bel", REGISTER)),
    (fill("krurou", "founder", "founded"), executed("founder: Ana\nfounded: 1200", KROUROU)),
    (fill("bel", "founder", "founded"), executed("founder: Bo\nfounded: 900", BEL, ANNALS)),
)


class ScriptedTables:
    """A filler that plays reports. Clearing `let` makes it wait before report number `held`."""

    def __init__(
        self, lifecycle: RunLifecycle, script: Sequence[tuple[Ask, Execution]] = SCRIPT
    ) -> None:
        self._lifecycle = lifecycle
        self._script = script
        self.requests: list[TableRequest] = []
        self.options: list[RequestOptions] = []
        self.held = 2
        self.let = asyncio.Event()
        self.let.set()
        self.waiting = asyncio.Event()

    async def fill_table(
        self,
        request: TableRequest,
        options: RequestOptions,
        on_event: OnEvent = lambda _event: None,
    ) -> Run:
        """Fill a table from the script."""
        request = request.checked(TableLimits())
        self.requests.append(request)
        self.options.append(options)
        schema = with_conditions(Schema(request.columns), request.conditions)
        assembly = Assembly(schema, request.rows)
        rows = dict[RowKey, object]()
        asked = RunRequest("table", request.question, request)
        async with self._lifecycle.open(asked, options, on_event) as run:
            if isinstance(run, Run):
                return run
            tell = run.live.on_event
            tell(Planned(schema.shown, schema.conditions))
            for number, (ask, execution) in enumerate(self._script):
                tell(SubQueryDispatched(number, 1, f"{ask.kind} {number}", ask))
                if number == self.held and not self.let.is_set():
                    self.waiting.set()
                    await self.let.wait()
                tell(Reported(number, execution))
                assembly.add(ask, execution)
                for row in assembly.table().every_row:
                    if rows.get(row.key) is not row:
                        rows[row.key] = row
                        tell(RowChanged(row.key, row))
            asks = tuple(ask for ask, _ in self._script)
            executions = tuple(execution for _, execution in self._script)
            run.context.draft.result = TableRun(schema, request.rows, asks, executions)
        return run.stored
