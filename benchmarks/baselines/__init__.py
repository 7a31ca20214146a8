"""Ways to answer and to fill tables that the search is compared with."""
