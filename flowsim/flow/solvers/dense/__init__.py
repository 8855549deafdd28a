"""Methods for flows of any weights: implicit, in the eigenbasis of a Hessian that is kept for many steps."""
