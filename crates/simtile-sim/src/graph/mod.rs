//! Graphs as data: nodes, edges, order, reachability, comparison and DOT.
//!
//! What a node does is a type parameter: the driver's entries put their descriptions of work there. Nothing
//! here knows of streams or handles.

mod dot;
mod topology;

pub use dot::DotNode;
pub use topology::{Edge, Graph, GraphError, Mismatch, NodeId, Reach};
