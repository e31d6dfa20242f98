"""What runs next on a replica: a scheduler, a pool of KV blocks and a prefix cache."""
