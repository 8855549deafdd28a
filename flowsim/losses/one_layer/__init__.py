"""One layer of linear attention: heads of any kind by one quadratic form, and the four corners that papers treat."""
