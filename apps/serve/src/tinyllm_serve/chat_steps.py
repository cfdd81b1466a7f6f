"""From a conversation to the steps of its answers."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from tinyllm_engine import Request

from tinyllm_serve.answer_parser import AnswerParser
from tinyllm_serve.chat_grammar import chat_grammar
from tinyllm_serve.choices import Steps
from tinyllm_serve.field_names import CHAT, named
from tinyllm_serve.generation import Step, generation
from tinyllm_serve.merge import merge
from tinyllm_serve.prompt import Prompt
from tinyllm_serve.sampling import sampling_params
from tinyllm_serve.schemas.chat_request import ChatRequest
from tinyllm_serve.service import Service


async def chat_steps(service: Service, asked: ChatRequest) -> Steps:
    """Prepare the answers to a conversation.

    Returns:
        Their steps as they come, each with its answer's place.

    Raises:
        ApiError: if the model is another one, or the request cannot be served.
        TemplateError: if the model's template refuses the conversation.
    """
    service.check_ready()
    service.check_model(asked.model)
    # In a thread: a long conversation takes a while, and the streams of others go on.
    prompt = await asyncio.to_thread(
        Prompt.of_chat,
        service.tokenizer,
        asked.messages,
        asked.offered_tools,
        asked.template_variables,
    )
    grammar = chat_grammar(asked, prompt)
    top = asked.top_logprobs or 0
    functions = [tool.function.name for tool in asked.offered_tools]

    async def answer(choice: int) -> AsyncGenerator[Step, None]:
        request = Request(
            prompt.tokens,
            max_tokens=asked.token_limit or service.settings.max_tokens,
            sampling=sampling_params(asked, service.advice, choice=choice, top_logprobs=top),
            stop=asked.stops,
            priority=asked.priority,
            grammar=grammar,
            logprobs=bool(asked.logprobs),
            ignore_end=asked.ignore_eos,
        )
        parser = AnswerParser(opened=prompt.opened, functions=functions)
        one_call = asked.parallel_tool_calls is False
        steps = generation(service.engine, request, parser, service.metrics, one_call=one_call)
        with named(CHAT):
            async with aclosing(steps):
                async for step in steps:
                    yield step

    return merge([answer(choice) for choice in range(asked.choices)])
