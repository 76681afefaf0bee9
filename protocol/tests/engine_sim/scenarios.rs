//! Histories with a plan.
