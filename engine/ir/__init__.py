"""The nouns: Value, Node, Graph and OpDef; and how to build, rewrite, verify and run them."""
