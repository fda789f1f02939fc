//! Real threads: a stress test under the oracle, and an adversarial driver that blocks any call it may.

#![cfg(not(any(loom, shuttle)))]

mod support;

#[path = "threads/adversary.rs"]
mod adversary;
#[path = "threads/stress.rs"]
mod stress;
