//! Each rule of access tracking that is easy to miss, as a test of its name.

#![cfg(not(any(loom, shuttle)))]

mod support;

#[path = "rules/capture.rs"]
mod capture;
#[path = "rules/counters.rs"]
mod counters;
#[path = "rules/events.rs"]
mod events;
#[path = "rules/failing.rs"]
mod failing;
#[path = "rules/lifetime.rs"]
mod lifetime;
#[path = "rules/locks.rs"]
mod locks;
#[path = "rules/marks.rs"]
mod marks;
#[path = "rules/order.rs"]
mod order;
#[path = "rules/streams.rs"]
mod streams;
