"""The inspection service: serves models over HTTP, stores every inspection, and has a page for reviewing them."""
