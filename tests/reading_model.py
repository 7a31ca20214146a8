"""An OpenAI-compatible server whose one model reads by rule: it asks the question itself, searches
for it, reports the sentence that shares the most words with it, and answers with that report.
`python -m tests.reading_model [PORT]`.
"""

import asyncio
import html
import json
import re
import sys
from typing import Any

from aiohttp import web

from router.models.model import end_at_stop
from router.protocol.vocabulary import words
from router.trace.citation import sentences
from serving.config.file import preset

MODEL = "reading-model"
_PROMPTS = preset("local").parents[1] / "prompts" / "full"
_SYSTEM = {
    role: (_PROMPTS / f"{role}.txt").read_text("utf-8").strip()
    for role in ("delegation", "execution")
}


def write(messages: list[dict[str, str]]) -> str:
    """Return the model's next turn."""
    system, question, *rest = (message["content"] for message in messages)
    if line := re.search(r"^Repeat.*?: (.+)$", question, re.MULTILINE):
        return line[1]
    if system == _SYSTEM["delegation"]:
        return "<stop/>Enough evidence<stop>" if rest else f"<search>{question}</search>"
    if system == _SYSTEM["execution"]:
        return report(question, rest[-1]) if rest else f"<search>{question}</search>"
    last_report = re.search(
        r"</request><answer>(.*?)</answer><evidence>(.+?)</evidence>", question, re.DOTALL
    )
    return f"<answer>{last_report[1] if last_report else 'not found'}</answer>"


def report(sub_query: str, documents: str) -> str:
    """Report the sentence of the documents that shares the most words with the sub-query."""
    texts = re.findall(r"<text>(.*?)</text>", documents, re.DOTALL)
    candidates = [sentence for text in texts for sentence in sentences(html.unescape(text))]
    best = max(candidates, key=lambda sentence: len(words(sentence) & words(sub_query)), default="")
    quote = html.escape(" ".join(best.split()), quote=False)
    return f"<answer>{quote}</answer><evidence>{quote}</evidence>"


async def complete(request: web.Request) -> web.StreamResponse:
    """Answer, whole or as a stream of words."""
    body = await request.json()
    if body["model"] != MODEL:
        error = {
            "message": f"The model `{body['model']}` does not exist.",
            "code": "model_not_found",
        }
        return web.json_response({"error": error}, status=404)
    if request.headers.get("Authorization") not in (None, "Bearer right"):
        return web.json_response({"error": {"message": "Incorrect API key provided."}}, status=401)
    text, _ = end_at_stop(write(body["messages"]), tuple(body.get("stop", ())), "stop", None)
    if "response_format" in body:
        text = json.dumps({"answer": "yes"})
    read = sum(len(message["content"].split()) for message in body["messages"])
    usage = {
        "prompt_tokens": read,
        "completion_tokens": len(text.split()),
        "total_tokens": read + len(text.split()),
    }
    if not body.get("stream"):
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "finish_reason": "stop",
        }
        return web.json_response(
            {"id": "1", "object": "chat.completion", "choices": [choice], "usage": usage}
        )
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    chunks: list[dict[str, Any]] = [
        {"delta": {"content": word}} for word in re.findall(r"\s*\S+", text)
    ]
    for chunk in (*chunks, {"delta": {}, "finish_reason": "stop"}):
        await response.write(
            f"data: {json.dumps({'choices': [{'index': 0, **chunk}]})}\n\n".encode()
        )
    await response.write(
        f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n".encode()
    )
    return response


async def models(_request: web.Request) -> web.Response:
    """List the only model, with its context length as in vLLM."""
    return web.json_response(
        {"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 32768}]}
    )


async def serve(port: int) -> None:
    """Listen, print the base URL, and run until standard input ends."""
    app = web.Application()
    app.add_routes([web.post("/v1/chat/completions", complete), web.get("/v1/models", models)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]) if len(sys.argv) > 1 else 0))
