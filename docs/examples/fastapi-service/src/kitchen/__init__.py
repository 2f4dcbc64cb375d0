"""A service that takes orders over HTTP and cooks them."""
