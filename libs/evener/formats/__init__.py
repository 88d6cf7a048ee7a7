"""Groups and rows in the forms that trainers and people read. Pure."""
