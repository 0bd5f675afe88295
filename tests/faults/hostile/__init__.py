"""Inputs that a stranger may hand to either program, each of which must be refused: ../test_hostile.py runs them."""
