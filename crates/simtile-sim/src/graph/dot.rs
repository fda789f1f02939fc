//! Graphs as DOT text.

use super::Graph;
use std::fmt::Write as _;

/// How a node describes itself in a picture.
pub trait DotNode {
    /// One line a string; the first names the kind.
    fn describe(&self) -> Vec<String>;
}

impl<W: DotNode> Graph<W> {
    /// The graph as DOT, nodes and edges in a fixed order.
    pub fn to_dot(&self, name: &str) -> String {
        let mut text = format!("digraph \"{}\" {{\n", escape(name));
        // Writing to a `String` cannot fail.
        for (id, work) in self.nodes() {
            let lines: Vec<String> = work.describe().iter().map(|line| escape(line)).collect();
            let _ = writeln!(text, "  n{} [shape=box, label=\"{}\"];", id.0, lines.join("\\n"));
        }
        for edge in self.edges() {
            let label = if edge.data == [0; 3] { "" } else { " [style=dashed, label=\"programmatic\"]" };
            let _ = writeln!(text, "  n{} -> n{}{label};", edge.from.0, edge.to.0);
        }
        text.push_str("}\n");
        text
    }
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    impl DotNode for &str {
        fn describe(&self) -> Vec<String> {
            vec!["kernel".into(), (*self).into()]
        }
    }

    #[test]
    fn text_is_stable_and_escaped() {
        let mut graph = Graph::new();
        let a = graph.add("a\"b", &[]).unwrap();
        graph.add("c", &[(a, [1, 0, 1])]).unwrap();
        assert_eq!(
            graph.to_dot("g"),
            "digraph \"g\" {\n  n1 [shape=box, label=\"kernel\\na\\\"b\"];\n  n2 [shape=box, label=\"kernel\\nc\"];\n  \
             n1 -> n2 [style=dashed, label=\"programmatic\"];\n}\n"
        );
    }
}
