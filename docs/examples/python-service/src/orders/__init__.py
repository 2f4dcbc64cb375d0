"""Orders come in, invoices go out."""
