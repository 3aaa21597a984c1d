"""The inspection service: models answer over HTTP, every inspection is kept, and people review them on a page."""
