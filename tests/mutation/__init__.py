"""Is the evidence worth anything? Leave a guard out of the product, and see who notices.

``python -m tests.mutation`` runs every mutant of `mutants` through the simulation campaign and, if
that does not notice, through the unit tests; it prints who caught what, and after how many
histories. A mutant that nobody catches means that the tests are too weak, and fails the run.
"""
