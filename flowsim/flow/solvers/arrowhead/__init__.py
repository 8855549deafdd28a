"""Solvers for flows with an arrowhead matrix as Hessian, such as those of one layer of linear attention."""
