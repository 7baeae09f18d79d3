//! Tests of the rig itself.
