"""Replies of the OpenAI-compatible server, in the forms of its two APIs."""

import secrets
import time
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, Literal

import msgspec

from router.edge.http.openai_request import ChatRequest, ResponsesRequest
from router.edge.rendering import SOURCES, CitedAnswer
from router.edge.status import HTTP_STATUS, Failure
from router.frozen import Frozen
from router.trace.call import RoleTotal, UsageSums, added

Written = Literal["summary_text", "output_text", "refusal"]
"""Kinds of texts in a reply: the progress, the answer, or the reason why there is no answer."""
_MESSAGE = {"type": "message", "role": "assistant"}
_OUTPUTS: dict[str, tuple[Any, ...]] = {
    "summary_text": (
        "reasoning_content",
        {"type": "reasoning"},
        "summary",
        "reasoning_summary_part",
        "reasoning_summary_text",
    ),
    "output_text": ("content", _MESSAGE, "content", "content_part", "output_text"),
    "refusal": ("refusal", _MESSAGE, "content", "content_part", "refusal"),
}
"""Five names for each kind of text. The first is the field in chat completions. The others are for
the responses API: the output item, the item's list of parts, the prefix of events about a part, and
the prefix of events about the part's text.
"""


class Result(Frozen):
    """The result of a finished run, as it is sent to the client."""

    cited: CitedAnswer
    spent: list[RoleTotal]
    kind: Written
    text: str
    rest: str
    """The part of the text that a stream has not sent yet."""

    @property
    def details(self) -> dict[str, Any]:
        """The field `rolegate` of a reply: the answer with its sources, and the usage by role."""
        return {**msgspec.structs.asdict(self.cited), "usage": self.spent}


class ChatReply:
    """A reply of the chat completions API, whole or as the events of a stream. Each event is a
    value to send as JSON.
    """

    def __init__(self, asked: ChatRequest) -> None:
        self._asked = asked
        self._name = f"chatcmpl-{secrets.token_hex(12)}"
        self._created = int(time.time())

    def whole(self, result: Result) -> Any:
        """Return the reply to a request that is not streamed."""
        name = _OUTPUTS[result.kind][0]
        message = {"role": "assistant", "content": None, name: result.text}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        usage = usage_of(result.spent, "prompt", "completion")
        return self._reply("chat.completion", [choice], rolegate=result.details, usage=usage)

    def begin(self) -> Iterator[Any]:
        """Yield the first events of a stream."""
        yield self._chunk({"role": "assistant"})

    def write(self, kind: Written, text: str) -> Iterator[Any]:
        """Yield the events for a further part of the answer, or of the progress (`summary_text`).
        The progress is sent as reasoning.
        """
        yield self._chunk({_OUTPUTS[kind][0]: text})

    def end(self, result: Result) -> Iterator[Any]:
        """Yield the last events of a stream."""
        yield from self.write(result.kind, result.rest)
        yield self._chunk({}, "stop", rolegate=result.details)
        options = self._asked.stream_options
        if options and options.include_usage:
            usage = usage_of(result.spent, "prompt", "completion")
            yield self._reply("chat.completion.chunk", [], usage=usage)
        yield msgspec.Raw(b"[DONE]")

    def failed(self, failure: Failure) -> Iterator[Any]:
        """Yield the last events of a stream whose run failed."""
        yield failure_body(failure)

    def _chunk(self, delta: Any, finish_reason: str | None = None, **details: Any) -> Any:
        choice = {"index": 0, "finish_reason": finish_reason, "delta": delta}
        return self._reply("chat.completion.chunk", [choice], **details)

    def _reply(self, kind: str, choices: list[Any], **fields: Any) -> Any:
        head = {"id": self._name, "object": kind, "created": self._created}
        known = {name: value for name, value in fields.items() if value is not None}
        return {**head, "model": self._asked.model, "choices": choices, **known}


class ResponseReply:
    """A reply of the responses API, whole or as the events of a stream. It has the same methods as
    `ChatReply`.
    """

    def __init__(self, asked: ResponsesRequest) -> None:
        self._name = secrets.token_hex(12)
        self._head = {
            "id": f"resp_{self._name}",
            "object": "response",
            "created_at": int(time.time()),
            "model": asked.model,
            "parallel_tool_calls": False,
            "tool_choice": "none",
            "tools": [],
            "text": asked.text,
        }
        self._numbers = count()
        self._ended = list[Any]()
        """The completed items of the output."""
        self._kind = ""
        """Type of the part that is being written; empty if there is none."""
        self._text = ""
        """Text so far of the part that is being written."""
        self._place = dict[str, Any]()
        """Fields of each event about the part that is being written. They state the part's place in
        the output.
        """

    def whole(self, result: Result) -> Any:
        """Return the reply to a request that is not streamed."""
        *_, last = self.end(result)
        return last["response"]

    def begin(self) -> Iterator[Any]:
        """Yield the first events of a stream."""
        yield self._event("created", response=self._response("in_progress"))

    def write(self, kind: Written, text: str) -> Iterator[Any]:
        """Yield the events for a further part of a text. If the text is of another kind than the
        part before, the first events end the open item and open an item for the new kind.
        """
        _, _, parts, part, written = _OUTPUTS[kind]
        if self._kind != kind:
            yield from self._close()
            self._kind = kind
            self._text = ""
            at = len(self._ended)
            name = f"msg_{self._name}_{at}"
            self._place = {"item_id": name, "output_index": at, f"{parts}_index": 0}
            yield self._event("output_item.added", item=self._item("in_progress"))
            yield self._event(f"{part}.added", part=self._part())
        self._text += text
        yield self._event(f"{written}.delta", delta=text, logprobs=[])

    def end(self, result: Result) -> Iterator[Any]:
        """Yield the last events of a stream."""
        yield from self.write(result.kind, result.rest)
        yield from self._close(_annotations(result))
        usage = usage_of(result.spent, "input", "output")
        response = self._response("completed", usage=usage, rolegate=result.details)
        yield self._event("completed", response=response)

    def failed(self, failure: Failure) -> Iterator[Any]:
        """Yield the last events of a stream whose run failed."""
        error = {"code": "server_error", "message": failure.message, "type": failure.reason}
        yield self._event("failed", response=self._response("failed", error=error))

    def _close(self, annotations: Sequence[Any] = ()) -> Iterator[Any]:
        """Yield the events that end the item that is being written."""
        if not self._kind:
            return
        *_, name, written = _OUTPUTS[self._kind]
        part = self._part(annotations)
        yield self._event(f"{written}.done", **part, logprobs=[])
        for number, cited in enumerate(part.get("annotations", ())):
            kind = "output_text.annotation.added"
            yield self._event(kind, annotation=cited, annotation_index=number)
        yield self._event(f"{name}.done", part=part)
        item = self._item("completed", part)
        yield self._event("output_item.done", item=item)
        self._ended.append(item)
        self._place = {}

    def _part(self, annotations: Sequence[Any] = ()) -> dict[str, Any]:
        if self._kind == "refusal":
            return {"type": "refusal", "refusal": self._text}
        more = {"annotations": annotations} if self._kind == "output_text" else {}
        return {"type": self._kind, "text": self._text, **more}

    def _item(self, status: str, *parts: Any) -> dict[str, Any]:
        _, item, name, *_ = _OUTPUTS[self._kind]
        return {"id": self._place["item_id"], **item, "status": status, name: parts}

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        number = next(self._numbers)
        return {**self._place, **fields, "type": f"response.{kind}", "sequence_number": number}

    def _response(self, status: str, **fields: Any) -> dict[str, Any]:
        """Return the response object with its output so far, the status `status` and further
        `fields`.
        """
        return {**self._head, "status": status, "error": None, "output": [*self._ended], **fields}


Reply = ChatReply | ResponseReply
"""A reply in the form of one of the two APIs."""


def _annotations(result: Result) -> list[dict[str, Any]]:
    """Return the citations of an answer as annotations, all of them at the end of its text."""
    end = len(result.text.partition(SOURCES)[0])
    return [
        {
            "type": "file_citation",
            "index": end,
            "file_id": cited.passage_id,
            "filename": cited.document or cited.title,
            "quote": cited.quote,
        }
        for cited in result.cited.citations
    ]


def usage_of(spent: list[RoleTotal], read: str, written: str) -> dict[str, Any] | None:
    """Return the field `usage` of a reply, summed over all roles. Return None if no engine reported
    its usage. Counts that no engine reported are null.

    `read`, `written`: first words in the names of the fields; `prompt` and `completion`, or `input`
    and `output`.
    """
    sums = UsageSums(**added([UsageSums(), *spent]))
    if sums.attempts and sums.attempts == sums.attempts_without_usage:
        return None
    return {
        f"{read}_tokens": sums.prompt_tokens,
        f"{written}_tokens": sums.completion_tokens,
        "total_tokens": sums.prompt_tokens + sums.completion_tokens,
        f"{read}_tokens_details": {"cached_tokens": sums.cached_tokens},
        f"{written}_tokens_details": {"reasoning_tokens": sums.reasoning_tokens},
    }


def failure_body(failure: Failure) -> dict[str, Any]:
    """Return the body of the response to a request that failed."""
    return error_body(HTTP_STATUS[failure.code], failure.message, failure.reason)


def error_body(
    status: int,
    message: str,
    code: str,
    param: str | None = None,
) -> dict[str, Any]:
    """Return the body of an error response in the form of OpenAI's API. `param`: the name of the
    invalid field in the request; None if unknown.
    """
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
