"""llama-index-llms-openai-like: chats and completions, streamed and not, in both manners of calling."""

import sys

import openai
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

from benchmarks.clients.drivers.checks import KEY, PROMPT, Checks


def main() -> int:
    """The command."""
    checks = Checks()
    shared = {
        "api_base": f"{checks.url}/v1", "api_key": KEY, "model": checks.model, "max_tokens": 8, "max_retries": 0,
        "context_window": 4096,
    }  # fmt: skip
    chat = OpenAILike(**shared, is_chat_model=True, is_function_calling_model=True)
    text = OpenAILike(**shared, is_chat_model=False)
    turns = [ChatMessage(role="system", content="Be brief"), ChatMessage(role="user", content=PROMPT)]

    async def asynchronous() -> bool:
        return len([part async for part in await chat.astream_chat(turns)]) > 1

    async def whole() -> bool:
        return bool((await text.acomplete(PROMPT)).raw)

    def looked(place: str) -> str:
        """Look at a place."""
        return place

    checks.check("chat", lambda: bool(chat.chat(turns).raw))
    checks.check("stream_chat", lambda: len(list(chat.stream_chat(turns))) > 1)
    checks.check("complete by chat", lambda: isinstance(chat.complete(PROMPT).text, str))
    checks.check("complete", lambda: isinstance(text.complete(PROMPT).text, str))
    checks.check("stream_complete", lambda: len(list(text.stream_complete(PROMPT))) > 1)
    checks.check("chat by completion", lambda: bool(text.chat(turns).raw))
    checks.check("async stream", asynchronous)
    checks.check("async complete", whole)
    tools = [FunctionTool.from_defaults(looked)]
    checks.refuses("tools", lambda: chat.chat_with_tools(tools, user_msg=PROMPT), openai.BadRequestError, "tools:")
    return checks.finish()


if __name__ == "__main__":
    sys.exit(main())
