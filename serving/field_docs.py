"""Read the docstrings under the fields of a class from its source, as pydantic's
`use_attribute_docstrings` does.
"""

import ast
import inspect
from textwrap import dedent


def field_docs(cls: type) -> dict[str, str]:
    """Return the docstrings under the fields of a class and its bases, by the fields' names. Line
    breaks in a docstring are replaced by spaces.
    """
    docs = dict[str, str]()
    for base in cls.__bases__:
        if base.__module__.partition(".")[0] not in ("builtins", "msgspec"):
            docs |= field_docs(base)
    (definition,) = ast.parse(dedent(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        match field, text:
            case ast.AnnAssign(ast.Name(name)), ast.Expr(ast.Constant(str(doc))):
                docs[name] = " ".join(doc.split())
    return docs
