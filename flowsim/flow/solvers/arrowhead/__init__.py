"""Solvers for flows whose Hessian is an arrowhead: nonzero on the diagonal and in one row and column only."""
