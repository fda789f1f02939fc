//! Nodes and edges.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A node of a graph; numbers grow in the order of creation and are never reused in a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

/// A dependency: `to` starts after `from` (or, with ports, after a point inside it).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Edge {
    /// What comes first.
    pub from: NodeId,
    /// What comes after.
    pub to: NodeId,
    /// `from_port`, `to_port` and type of `CUgraphEdgeData`; zeros are a full dependency.
    pub data: [u8; 3],
}

/// Why a change of a graph was refused. CUDA says `INVALID_VALUE` to all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GraphError {
    /// No such node in this graph.
    UnknownNode(NodeId),
    /// The same dependency twice.
    DuplicateEdge(NodeId, NodeId),
    /// There is no such dependency.
    UnknownEdge(NodeId, NodeId),
    /// The dependency would close a cycle.
    Cycle(NodeId, NodeId),
}

impl fmt::Display for GraphError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownNode(node) => write!(f, "node {} is not in this graph", node.0),
            Self::DuplicateEdge(from, to) => write!(f, "node {} already depends on node {}", to.0, from.0),
            Self::UnknownEdge(from, to) => write!(f, "node {} does not depend on node {}", to.0, from.0),
            Self::Cycle(from, to) => write!(f, "node {} already comes before node {}", to.0, from.0),
        }
    }
}

impl std::error::Error for GraphError {}

/// Where two graphs differ in shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// Different numbers of nodes.
    NodeCount {
        /// Of the graph that was instantiated.
        old: usize,
        /// Of the new one.
        new: usize,
    },
    /// The nodes at the same place are of different kinds or cannot be updated.
    Node {
        /// In the graph that was instantiated.
        old: NodeId,
        /// In the new one.
        new: NodeId,
    },
    /// The nodes at the same place have different dependencies.
    Dependencies {
        /// In the graph that was instantiated.
        old: NodeId,
        /// In the new one.
        new: NodeId,
    },
}

/// A directed graph without cycles.
#[derive(Clone, Debug)]
pub struct Graph<W> {
    nodes: BTreeMap<NodeId, W>,
    edges: BTreeMap<(NodeId, NodeId), [u8; 3]>,
    next: u64,
}

impl<W> Default for Graph<W> {
    fn default() -> Self {
        Self { nodes: BTreeMap::new(), edges: BTreeMap::new(), next: 1 }
    }
}

impl<W> Graph<W> {
    /// An empty graph.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a node that comes after `dependencies`.
    ///
    /// # Errors
    /// An unknown or repeated dependency; the graph is unchanged.
    pub fn add(&mut self, work: W, dependencies: &[(NodeId, [u8; 3])]) -> Result<NodeId, GraphError> {
        let mut seen = BTreeSet::new();
        let id = NodeId(self.next);
        for &(from, _) in dependencies {
            if !self.nodes.contains_key(&from) {
                return Err(GraphError::UnknownNode(from));
            }
            if !seen.insert(from) {
                return Err(GraphError::DuplicateEdge(from, id));
            }
        }
        self.next += 1;
        self.nodes.insert(id, work);
        self.edges.extend(dependencies.iter().map(|&(from, data)| ((from, id), data)));
        Ok(id)
    }

    /// Adds a dependency.
    ///
    /// # Errors
    /// Unknown nodes, a repeated dependency, a cycle; the graph is unchanged.
    pub fn connect(&mut self, edge: Edge) -> Result<(), GraphError> {
        let Edge { from, to, data } = edge;
        self.must_have(from)?;
        self.must_have(to)?;
        if self.edges.contains_key(&(from, to)) {
            return Err(GraphError::DuplicateEdge(from, to));
        }
        if from == to || self.reach().comes_before(to, from) {
            return Err(GraphError::Cycle(from, to));
        }
        self.edges.insert((from, to), data);
        Ok(())
    }

    /// Adds a dependency between nodes of this graph that closes no cycle, as the caller knows.
    pub(crate) fn connect_known(&mut self, edge: Edge) {
        self.edges.insert((edge.from, edge.to), edge.data);
    }

    /// Removes a dependency.
    ///
    /// # Errors
    /// There is no such dependency.
    pub fn disconnect(&mut self, from: NodeId, to: NodeId) -> Result<(), GraphError> {
        self.edges.remove(&(from, to)).map(drop).ok_or(GraphError::UnknownEdge(from, to))
    }

    /// Removes a node and its dependencies.
    ///
    /// # Errors
    /// No such node.
    pub fn remove(&mut self, node: NodeId) -> Result<W, GraphError> {
        let work = self.nodes.remove(&node).ok_or(GraphError::UnknownNode(node))?;
        self.edges.retain(|&(from, to), _| from != node && to != node);
        Ok(work)
    }

    fn must_have(&self, node: NodeId) -> Result<(), GraphError> {
        if self.nodes.contains_key(&node) { Ok(()) } else { Err(GraphError::UnknownNode(node)) }
    }

    /// What a node does.
    pub fn get(&self, node: NodeId) -> Option<&W> {
        self.nodes.get(&node)
    }

    /// What a node does, to change it.
    pub fn get_mut(&mut self, node: NodeId) -> Option<&mut W> {
        self.nodes.get_mut(&node)
    }

    /// Nodes in the order of creation.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = (NodeId, &W)> {
        self.nodes.iter().map(|(&id, work)| (id, work))
    }

    /// All dependencies, by first and second node.
    pub fn edges(&self) -> impl ExactSizeIterator<Item = Edge> + '_ {
        self.edges.iter().map(|(&(from, to), &data)| Edge { from, to, data })
    }

    /// What comes directly before a node.
    pub fn dependencies(&self, node: NodeId) -> impl Iterator<Item = Edge> + '_ {
        self.edges().filter(move |edge| edge.to == node)
    }

    /// What comes directly after a node.
    pub fn dependents(&self, node: NodeId) -> impl Iterator<Item = Edge> + '_ {
        self.edges().filter(move |edge| edge.from == node)
    }

    /// Nodes that depend on nothing.
    pub fn roots(&self) -> impl Iterator<Item = NodeId> + '_ {
        let later: BTreeSet<NodeId> = self.edges.keys().map(|&(_, to)| to).collect();
        self.nodes.keys().copied().filter(move |node| !later.contains(node))
    }

    /// Nodes that nothing depends on.
    pub fn leaves(&self) -> impl Iterator<Item = NodeId> + '_ {
        let earlier: BTreeSet<NodeId> = self.edges.keys().map(|&(from, _)| from).collect();
        self.nodes.keys().copied().filter(move |node| !earlier.contains(node))
    }

    /// A legal order. `choose(n)` picks which of `n` nodes that may come next does (`|_| 0`: by creation).
    pub fn order(&self, mut choose: impl FnMut(usize) -> usize) -> Vec<NodeId> {
        let mut missing: BTreeMap<NodeId, usize> = self.nodes.keys().map(|&node| (node, 0)).collect();
        let mut after: BTreeMap<NodeId, Vec<NodeId>> = BTreeMap::new();
        for &(from, to) in self.edges.keys() {
            *missing.entry(to).or_default() += 1;
            after.entry(from).or_default().push(to);
        }
        let mut ready: Vec<NodeId> =
            missing.iter().filter(|&(_, &count)| count == 0).map(|(&node, _)| node).collect();
        let mut order = Vec::with_capacity(self.nodes.len());
        while !ready.is_empty() {
            let pick = choose(ready.len()).min(ready.len() - 1);
            let node = ready.remove(pick);
            order.push(node);
            for &next in after.get(&node).into_iter().flatten() {
                if let Some(count) = missing.get_mut(&next) {
                    *count -= 1;
                    if *count == 0 {
                        ready.push(next);
                        ready.sort_unstable();
                    }
                }
            }
        }
        order
    }

    /// Which nodes come before which.
    pub fn reach(&self) -> Reach {
        let order = self.order(|_| 0);
        let index: BTreeMap<NodeId, usize> = order.iter().enumerate().map(|(i, &node)| (node, i)).collect();
        let words = order.len().div_ceil(64);
        let mut before = vec![0u64; words * order.len()];
        let mut sources: BTreeMap<NodeId, Vec<NodeId>> = BTreeMap::new();
        for &(from, to) in self.edges.keys() {
            sources.entry(to).or_default().push(from);
        }
        for (i, &node) in order.iter().enumerate() {
            for from in sources.get(&node).into_iter().flatten() {
                let Some(&j) = index.get(from) else { continue };
                for word in 0..words {
                    let inherited = before[j * words + word];
                    before[i * words + word] |= inherited;
                }
                before[i * words + j / 64] |= 1 << (j % 64);
            }
        }
        Reach { index, words, before }
    }

    /// Pairs the nodes of this graph with those of `new`, which has the same shape: by their places in an order that the
    /// edges allow and, where they leave it open, of creation. `same(old, new)` says whether two nodes can be updated
    /// into each other.
    ///
    /// # Errors
    /// Where the graphs differ.
    pub fn pair<V>(
        &self,
        new: &Graph<V>,
        same: impl Fn(&W, &V) -> bool,
    ) -> Result<Vec<(NodeId, NodeId)>, Mismatch> {
        let (old_count, new_count) = (self.nodes.len(), new.nodes.len());
        if old_count != new_count {
            return Err(Mismatch::NodeCount { old: old_count, new: new_count });
        }
        let place = |ids: &[NodeId]| -> BTreeMap<NodeId, usize> {
            ids.iter().enumerate().map(|(i, &id)| (id, i)).collect()
        };
        let (olds, news) = (self.order(|_| 0), new.order(|_| 0));
        let (old_place, new_place) = (place(&olds), place(&news));
        for (&old, &other) in olds.iter().zip(&news) {
            let (Some(old_work), Some(new_work)) = (self.get(old), new.get(other)) else { continue };
            if !same(old_work, new_work) {
                return Err(Mismatch::Node { old, new: other });
            }
            let before = |place: &BTreeMap<NodeId, usize>, edges: &mut dyn Iterator<Item = Edge>| {
                let mut all: Vec<_> = edges.map(|e| (place.get(&e.from).copied(), e.data)).collect();
                all.sort_unstable();
                all
            };
            if before(&old_place, &mut self.dependencies(old))
                != before(&new_place, &mut new.dependencies(other))
            {
                return Err(Mismatch::Dependencies { old, new: other });
            }
        }
        Ok(olds.into_iter().zip(news).collect())
    }
}

/// Which nodes of a graph come before which, at the time it was made.
#[derive(Clone, Debug)]
pub struct Reach {
    index: BTreeMap<NodeId, usize>,
    words: usize,
    /// Row i: bits of the nodes before node i.
    before: Vec<u64>,
}

impl Reach {
    /// Whether `a` ends before `b` starts.
    pub fn comes_before(&self, a: NodeId, b: NodeId) -> bool {
        let (Some(&a), Some(&b)) = (self.index.get(&a), self.index.get(&b)) else { return false };
        self.before[b * self.words + a / 64] >> (a % 64) & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: [u8; 3] = [0; 3];

    fn diamond() -> (Graph<&'static str>, [NodeId; 4]) {
        let mut graph = Graph::new();
        let a = graph.add("a", &[]).unwrap();
        let b = graph.add("b", &[(a, FULL)]).unwrap();
        let c = graph.add("c", &[(a, FULL)]).unwrap();
        let d = graph.add("d", &[(b, FULL), (c, FULL)]).unwrap();
        (graph, [a, b, c, d])
    }

    #[test]
    fn order_respects_edges_and_the_chooser_decides_the_rest() {
        let (graph, [a, b, c, d]) = diamond();
        assert_eq!(graph.order(|_| 0), [a, b, c, d]);
        assert_eq!(graph.order(|n| n - 1), [a, c, b, d]);
        assert_eq!(graph.order(|_| 99), [a, c, b, d], "a wild choice is brought into range");
        assert_eq!(graph.roots().collect::<Vec<_>>(), [a]);
        assert_eq!(graph.leaves().collect::<Vec<_>>(), [d]);
    }

    #[test]
    fn reach_is_transitive() {
        let (graph, [a, b, c, d]) = diamond();
        let reach = graph.reach();
        assert!(reach.comes_before(a, d) && reach.comes_before(b, d) && reach.comes_before(a, c));
        assert!(!reach.comes_before(b, c) && !reach.comes_before(c, b) && !reach.comes_before(d, a));
        assert!(!reach.comes_before(a, a));
    }

    #[test]
    fn reach_over_more_than_one_word() {
        let mut graph = Graph::new();
        let mut ids = vec![graph.add(0, &[]).unwrap()];
        for i in 1..200 {
            ids.push(graph.add(i, &[(ids[i - 1], FULL)]).unwrap());
        }
        let reach = graph.reach();
        for i in 0..200 {
            for j in 0..200 {
                assert_eq!(reach.comes_before(ids[i], ids[j]), i < j);
            }
        }
    }

    #[test]
    fn bad_changes_are_refused_and_change_nothing() {
        let (mut graph, [a, b, c, d]) = diamond();
        let edges: Vec<_> = graph.edges().collect();
        let edge = |from, to| Edge { from, to, data: FULL };
        assert_eq!(graph.connect(edge(d, a)), Err(GraphError::Cycle(d, a)));
        assert_eq!(graph.connect(edge(b, b)), Err(GraphError::Cycle(b, b)));
        assert_eq!(graph.connect(edge(a, b)), Err(GraphError::DuplicateEdge(a, b)));
        assert_eq!(graph.connect(edge(a, NodeId(77))), Err(GraphError::UnknownNode(NodeId(77))));
        assert_eq!(graph.disconnect(b, c), Err(GraphError::UnknownEdge(b, c)));
        assert_eq!(graph.add("x", &[(NodeId(9), FULL)]), Err(GraphError::UnknownNode(NodeId(9))));
        assert!(matches!(graph.add("x", &[(a, FULL), (a, FULL)]), Err(GraphError::DuplicateEdge(..))));
        assert_eq!(graph.edges().collect::<Vec<_>>(), edges);
        assert_eq!(graph.nodes().len(), 4);
        graph.connect(edge(b, c)).unwrap();
        assert_eq!(graph.connect(edge(c, b)), Err(GraphError::Cycle(c, b)));
        assert_eq!(graph.remove(b), Ok("b"));
        assert_eq!(graph.edges().count(), 2);
    }

    #[test]
    fn comparison_finds_the_first_difference() {
        let (old, [a, b, c, d]) = diamond();
        let (mut new, _) = diamond();
        let same = |a: &&str, b: &&str| a == b;
        let ids = [a, b, c, d].map(|id| (id, id));
        assert_eq!(old.pair(&new, same), Ok(ids.to_vec()));
        new.disconnect(c, d).unwrap();
        assert_eq!(old.pair(&new, same), Err(Mismatch::Dependencies { old: d, new: d }));
        *new.get_mut(c).unwrap() = "other";
        assert_eq!(old.pair(&new, same), Err(Mismatch::Node { old: c, new: c }));
        new.add("e", &[]).unwrap();
        assert_eq!(old.pair(&new, same), Err(Mismatch::NodeCount { old: 4, new: 5 }));
    }
}
