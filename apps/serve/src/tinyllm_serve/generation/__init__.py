"""From a request to the parts of its answers: prompt, grammar, engine, parsers."""
