"""The steps of flows of any weights: implicit ones in the eigenbasis of a Hessian that is kept, and explicit ones."""
