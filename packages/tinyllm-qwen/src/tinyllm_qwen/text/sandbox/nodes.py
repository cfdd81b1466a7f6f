"""A transformer of syntax trees that meters operations without a hook in jinja2's sandbox."""

from collections.abc import Callable

from jinja2 import Environment, nodes
from jinja2.visitor import NodeTransformer


class MeteredNodes(NodeTransformer):
    """Adds metering filters to loops, comparisons, literals, subscripts and `a ~ b`."""

    def __init__(self, environment: Environment) -> None:
        """Make a transformer for an environment that has the metering filters."""
        self._environment = environment

    def visit(self, node: nodes.Node, *args: object, **kwargs: object) -> nodes.Node:
        """Return the transformed node. Its children are transformed first."""
        node = self.generic_visit(node, *args, **kwargs)
        if isinstance(node, nodes.For):
            # Charge the template's text in each iteration: a macro may collect it in a buffer.
            text = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
            node.iter = self._filtered(node.iter, "metered_items", nodes.Const(text))
        elif isinstance(node, nodes.Concat):
            node.nodes = [self._filtered(operand, "metered_text") for operand in node.nodes]
            return self._filtered(node, "metered_value")
        elif isinstance(node, nodes.Getitem) and not isinstance(node.arg, nodes.Const):
            return node if node.ctx != "load" else self._filtered(node, "metered_view")
        elif isinstance(node, nodes.List | nodes.Dict | nodes.Compare | nodes.Test) or (
            isinstance(node, nodes.Tuple) and node.ctx == "load"
        ):
            return self._filtered(node, "metered_value")
        return node

    def _filtered(self, node: nodes.Node, name: str, *args: nodes.Expr) -> nodes.Filter:
        line = node.lineno
        filtered = nodes.Filter(node, name, list(args), [], None, None, lineno=line)
        filtered.set_environment(self._environment)
        return filtered


def convert_texts(tree: nodes.Node, convert: Callable[[str], str]) -> None:
    """Convert the text that a template outputs, and its string constants, in place."""
    for data in tree.find_all(nodes.TemplateData):
        data.data = convert(data.data)
    for constant in tree.find_all(nodes.Const):
        if isinstance(constant.value, str):
            constant.value = convert(constant.value)
