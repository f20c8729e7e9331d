"""Mutation of the product's source: how many small bugs the tests notice."""
