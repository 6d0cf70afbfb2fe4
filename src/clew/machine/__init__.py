"""What CPUs have, and what code for them needs: the only room, beside `target`, that knows them by
the names of their features.
"""
