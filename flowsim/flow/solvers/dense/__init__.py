"""Steps for flows of any loss: implicit ones, in the eigenbasis of a Hessian kept for many steps, and explicit
ones.
"""
