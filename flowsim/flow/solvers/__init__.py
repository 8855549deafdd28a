"""Methods that step a flow: Radau IIA for any loss and for arrowheads, their step sizes, and the diffrax solvers."""
