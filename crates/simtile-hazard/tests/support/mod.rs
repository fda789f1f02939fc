//! A mock driver and the oracle over it.
//!
//! The oracle shares nothing with the tracker: it knows streams as queues, events as positions in them, and orders by vector clocks
//! that it computes from the driver calls alone. It judges each call when it comes.

#![allow(dead_code, unused_imports)]

pub mod clock;
pub mod judge;
pub mod lab;
pub mod mock;
pub mod plain;
#[cfg(not(any(loom, shuttle)))]
pub mod program;
pub mod rng;
pub mod stress;

pub use clock::STREAMS;
pub use judge::{Touch, Use};
pub use mock::{Context, Failed, Fault, Mock, World};
pub use rng::Rng;
