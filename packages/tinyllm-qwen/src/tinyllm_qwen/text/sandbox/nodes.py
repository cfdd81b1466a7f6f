"""The meter in a template's syntax tree, for the parts without a hook in jinja2's sandbox."""

from jinja2 import Environment, nodes
from jinja2.visitor import NodeTransformer


class MeteredNodes(NodeTransformer):
    """Adds metering filters to loops, comparisons, literals, subscripts and `a ~ b`."""

    def __init__(self, environment: Environment) -> None:
        """Rewrite for an environment that has the filters."""
        self._environment = environment

    def visit(self, node: nodes.Node, *args: object, **kwargs: object) -> nodes.Node:
        """Rewrite a node after its children."""
        node = self.generic_visit(node, *args, **kwargs)
        if isinstance(node, nodes.For):
            # The template's own text in one turn of the loop, perhaps in the buffer of a macro.
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
