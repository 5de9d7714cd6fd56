"""What every frontend offers: the world's beginning and end, and operations on tensors."""
