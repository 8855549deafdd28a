"""Methods for flows whose Hessian is an arrowhead: one layer of linear attention."""
