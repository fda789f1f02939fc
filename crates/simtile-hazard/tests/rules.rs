//! Each rule of access tracking that is easy to miss, as a test of its name.

#![cfg(not(any(loom, shuttle)))]

mod support;

#[path = "rules/capture.rs"]
mod capture;
#[path = "rules/events.rs"]
mod events;
#[path = "rules/lifetime.rs"]
mod lifetime;
#[path = "rules/order.rs"]
mod order;
#[path = "rules/streams.rs"]
mod streams;
