"""The methods that step a flow: Radau IIA for any loss and for arrowheads, and how long the steps are."""
