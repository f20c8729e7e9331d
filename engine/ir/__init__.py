"""The nouns: Value, Node, Graph and OpDef; what builds, rewrites, verifies and runs them."""
