"""FlatBuffers schemas of the files trireme writes, and the code generated from them."""

if not __name__.startswith("trireme"):
    raise ImportError("the folder schema/ is the package trireme.schema: import that")
