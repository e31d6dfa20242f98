"""A small front: requests over replicas, by the prefix they share and the load there is."""
