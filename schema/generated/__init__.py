"""Code that tools/generate_schema.py makes from the schemas; not edited by hand."""

if not __name__.startswith("trireme"):
    raise ImportError("the folder schema/ is the package trireme.schema: import that")
