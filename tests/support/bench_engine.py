"""An engine for workers of `trireme bench`, that refuses, crashes or hangs as its model says."""

ENGINE = """
import os, sys, time
def convert(model, folder):
    return model + "!"
def open_engine(task, feeds):
    print("engines print what they like")
    print("warning: something", file=sys.stderr)
    kind = task["model"]
    if kind == "refuses":
        raise ValueError("Exception from core.cpp:84:\\n\\nno kernel for it")
    def call():
        if kind == "crashes":
            print("fatal: out of luck", file=sys.stderr, flush=True)
            os.abort()
        if kind == "hangs":
            time.sleep(60)
        return {name: array + 1 for name, array in feeds.items()}
    return call, {"version": "7"}
"""
