"""One program for M networks of equal architecture."""
