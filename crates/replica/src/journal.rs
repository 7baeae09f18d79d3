//! The journal format.
