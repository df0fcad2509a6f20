"""`resemblance demo`: something true about real networks on real data, in about a minute."""
