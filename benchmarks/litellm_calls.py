"""Model calls through LiteLLM's SDK, in a process of its own: `python -m benchmarks.litellm_calls BASE_URL CALLS
IN_FLIGHT`, which prints the milliseconds of CPU of one call.
"""

import asyncio
import sys
import time
from typing import Any

from benchmarks.asking import in_flight
from router.models.litellm_client import load_litellm

_WARM = 32


async def _cpu_ms(base_url: str, calls: int, at_once: int) -> float:
    litellm: Any = load_litellm()

    async def ask(number: int) -> None:
        said = [{"role": "user", "content": f"When was the director of film number {number} born?"}]
        await litellm.acompletion(
            model="openai/answerer", messages=said, api_base=base_url, api_key="none", max_tokens=64, num_retries=0
        )

    await in_flight(ask, _WARM, at_once)
    begun = time.process_time()
    await in_flight(ask, calls, at_once)
    return (time.process_time() - begun) / calls * 1000


if __name__ == "__main__":
    print(asyncio.run(_cpu_ms(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
