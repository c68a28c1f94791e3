"""What can be planned without torch or a GPU."""
