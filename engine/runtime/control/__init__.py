"""Control flow: bodies as programs of their own, and what drives them."""
