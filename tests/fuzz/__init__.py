"""Hostile input for every decoder: by hypothesis in the tests, by atheris for as long as wanted.

python -m tests.fuzz record --seconds 60      # coverage-guided; needs `pip install atheris`
"""
