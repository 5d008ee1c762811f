//! Holder of the integration tests in `tests/tests`; there is nothing to use here.
