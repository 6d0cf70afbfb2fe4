"""What clew's web servers have in common."""
