"""Make up requests for tables as training data, as in section 4.1 of the paper WideSeek-R1.

The model of the config's section `[synthesis]` reads a *seed*, which is a text about the subject of
the table, and writes a question. Then the model refines the question: it adds exact columns with
types, formats and keys. If the refinement cannot be parsed, the model is asked once for a
correction.
"""

from collections.abc import Callable
from random import Random

import msgspec

from executor_sft.questions import Question
from router.calls import Role
from router.errors import JSON_ERRORS, BadRequest
from router.frozen import Frozen
from router.models import Message
from router.protocol.tags import element, without_thinking
from router.search import RunContext
from router.table import TableRequest
from router.table.schema import checked_schema
from router.trace.table import Column

MIN_COLUMNS = 2
ROWS = (10, 50)
"""Min and max number of rows of a requested table, as in the paper WideSeek-R1."""
_CHARS = 4000
"""Max characters of a seed in the prompt."""
_REFINE = "Refine the question. Write the JSON object."


class _Refined(Frozen):
    question: str
    columns: tuple[Column, ...]


async def written_request(
    role: Role | None, context: Callable[[], RunContext], seed: Question
) -> Question:
    """Let the model write a request for a table about the seed, and return the seed with this
    request. The seed is returned unchanged if it already is a request, or if the model's request
    cannot be parsed.

    `role`: the model of `[synthesis]`; None if all seeds are requests. `context`: makes the context
    of a run. Raises `UpstreamError` if the model's endpoint fails.
    """
    if seed.table or role is None:
        return seed
    ledger = context().ledger
    rows = element("rows", str(Random(seed.id).randint(*ROWS)))
    messages = role.opening(element("seed", seed.text[:_CHARS]) + rows)
    output = await role.ask(messages, (), ledger)
    asked = _REFINE
    for _ in range(2):
        written = Message("assistant", without_thinking(output.text).strip())
        messages = (*messages, written, Message("user", asked))
        output = await role.ask(messages, (), ledger)
        try:
            return _refined(seed, without_thinking(output.text))
        except (*JSON_ERRORS, BadRequest) as error:
            asked = f"This cannot be read: {error}\nWrite the corrected JSON object."
    return seed


def _refined(seed: Question, text: str) -> Question:
    """Return the seed with the request that is written in `text`. Raises one of `JSON_ERRORS`, or
    `BadRequest`, if the request is invalid.
    """
    written = text[text.find("{") : text.rfind("}") + 1]
    refined = msgspec.json.decode(written, type=_Refined)
    columns = checked_schema(refined.columns).shown
    if not refined.question.strip() or len(columns) < MIN_COLUMNS:
        raise BadRequest(f"the request must have a question and at least {MIN_COLUMNS} columns.")
    return msgspec.structs.replace(
        seed, text=refined.question, table=TableRequest(refined.question, columns)
    )
