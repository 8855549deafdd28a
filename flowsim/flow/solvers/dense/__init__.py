"""The kernel of flows of any weights: an implicit method in the eigenbasis of a Hessian that is kept."""
