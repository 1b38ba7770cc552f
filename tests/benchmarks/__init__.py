"""Measurements, not tests: ``python -m tests.benchmarks --help`` lists them.

Modules with an underscore are processes and servers of the others.
"""
