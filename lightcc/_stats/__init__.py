"""The numbers of one rank: what they are called, and how others read them."""
