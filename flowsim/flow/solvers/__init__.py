"""Methods that integrate a flow: Radau IIA for any loss and for arrowheads, its step sizes, and explicit methods."""
