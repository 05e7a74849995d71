"""A second implementation of bulla's checks, written from docs/formats alone (see interop/README.md)."""
