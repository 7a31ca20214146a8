"""The requests that Open WebUI sends for one conversation, in their order, with its fields."""

import json
from typing import Any

import aiohttp

from tests.scripted_gateway import DIRECTOR, FOLLOW_UP, QUESTION, TASKS, addresses

HEADERS = {"Authorization": "Bearer none", "X-Title": "Open WebUI"}
TEMPLATES = {
    "title": (
        "### Task:\nGenerate a concise, 3-5 word title with an emoji.\n### Guidelines:\n"
        '- Stay accurate.\n### Output:\nJSON format: { "title": "…" }'
    ),
    "tags": (
        "### Task:\nGenerate 1-3 broad tags for the main themes.\n\n### Guidelines:\n"
        '- Stay accurate.\n\n### Output:\nJSON format: { "tags": ["…"] }\n'
    ),
    "follow-up": (
        "### Task:\nSuggest 3-5 relevant follow-up questions or prompts.\n### Guidelines:\n"
        '- Stay accurate.\n### Output:\nJSON format: { "follow_ups": ["…"] }'
    ),
}


async def test_a_conversation_with_its_background_tasks() -> None:
    """The model is chosen from the list. Each turn is streamed, and sends the turns before it; then
    come the tasks, which are not streamed, and cost no search.
    """
    with addresses() as (_, http):
        async with aiohttp.ClientSession(f"http://{http}", headers=HEADERS) as session:
            async with session.get("/v1/models") as response:
                models = [model["id"] for model in (await response.json())["data"]]
            assert models[0] == "rolegate"

            messages = [{"role": "system", "content": "Be kind."}]
            questions = []
            for question in (DIRECTOR, FOLLOW_UP):
                messages.append({"role": "user", "content": question})
                text, details = await _turn(session, messages)
                assert text.startswith("in 1943\n\nSources:\n")
                questions.append(details["question"])
                messages.append({"role": "assistant", "content": text})
            assert questions == ["", QUESTION]

            talk = "\n".join(f"{at['role'].upper()}: {at['content']}" for at in messages[-2:])
            for name, template in TEMPLATES.items():
                history = f"\n### Chat History:\n<chat_history>\n{talk}\n</chat_history>"
                reply = await _task(session, template + history, name)
                assert reply["choices"][0]["message"]["content"] == TASKS[name]
                assert [role["role"] for role in reply["rolegate"]["usage"]] == ["answer"]


async def _turn(session: aiohttp.ClientSession, messages: Any) -> tuple[str, Any]:
    """Return the text of a streamed answer, and its details."""
    body = {
        "model": "rolegate",
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
        "params": {},
        "features": {"web_search": False},
        "filter_ids": [],
    }
    async with session.post("/v1/chat/completions", json=body) as response:
        assert response.status == 200
        *events, done, end = (await response.text()).split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    *parts, usage = [json.loads(event.removeprefix("data: ")) for event in events]
    assert usage["choices"] == [] and usage["usage"]["total_tokens"] > 0
    deltas = [part["choices"][0]["delta"] for part in parts]
    assert any("reasoning_content" in delta for delta in deltas)
    return "".join(delta.get("content", "") for delta in deltas), parts[-1]["rolegate"]


async def _task(session: aiohttp.ClientSession, prompt: str, name: str) -> Any:
    """Return the reply to a task."""
    limit = {"max_completion_tokens": 1000} if name == "title" else {}
    messages = [{"role": "user", "content": prompt}]
    body = {"model": "rolegate", "messages": messages, "stream": False, **limit}
    async with session.post("/v1/chat/completions", json=body) as response:
        assert response.status == 200
        return await response.json()
