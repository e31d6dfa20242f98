"""How much of an all-to-all is left when each token goes only where its experts are.

In: k choices a token, n shards. Out: the part of the shards a token must reach, to multiply the
time of a full exchange (`collective_time("all_to_all", ...)`) by.
"""


def ragged_share(choices: int, shards: int) -> float:
    """The part of n shards that k independent even choices reach: 1 - (1 - 1/n)^k.

    Book, chapter 12. It stops holding when experts are chosen without repetition or unevenly.

    >>> round(ragged_share(4, 8), 4)
    0.4138
    """
    return 1 - (1 - 1 / shards) ** choices


def ragged_share_bound(choices: int, shards: int) -> float:
    """The most that k choices can reach: min(k/n, 1), as if no two met (book, chapter 12).

    >>> ragged_share_bound(4, 8), ragged_share_bound(16, 8)
    (0.5, 1.0)
    """
    return min(choices / shards, 1.0)
