"""Steps for flows of any loss: explicit steps, and implicit steps that use the eigenbasis of one Hessian many
times.
"""
