"""Delta Lake tables whose truth lives in SQL."""
