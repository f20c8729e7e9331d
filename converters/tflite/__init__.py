"""TensorFlow Lite models: a path or bytes come in, a checked Graph goes out."""
