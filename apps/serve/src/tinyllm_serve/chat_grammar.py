"""What the answer to a conversation must conform to: text of a form, or calls."""

from dataclasses import replace

from tinyllm_engine import Grammar

from tinyllm_serve.call_grammar import call_grammar, text_or_calls
from tinyllm_serve.prompt import Prompt
from tinyllm_serve.response_grammar import response_grammar
from tinyllm_serve.schemas.chat_request import ChatRequest


def chat_grammar(asked: ChatRequest, prompt: Prompt) -> Grammar | None:
    """The grammar of the answer to a prompt, which may think first; None where all will do."""
    grammar = response_grammar(asked)
    functions = [tool.function for tool in asked.callable_tools]
    if functions and (asked.must_call or grammar is not None):
        calls = call_grammar(functions, several=asked.parallel_tool_calls is not False)
        if grammar is None:
            grammar = calls
        else:
            grammar = replace(Grammar.union(grammar, calls), name=grammar.name)
    elif asked.has_strict_tools:
        grammar = text_or_calls(functions)
    return grammar and replace(grammar, after=prompt.before_answer, opening=prompt.opening)
