//! The files that hold the constants of a graph, and whether they could be read.

use std::sync::Arc;

use tensorc_abi::content::DataFile;

use crate::diag::{Diagnostic, Result};
use crate::graph::{Graph, NodeKind};

/// The files that held constants of a graph. What is made of the constants does not know them any more: whoever changes or
/// evaluates a graph lists them before, and checks them after.
#[derive(Clone, Debug, Default)]
pub struct DataFiles(Vec<Arc<DataFile>>);

impl DataFiles {
    /// Each file once.
    pub fn of(graph: &Graph) -> DataFiles {
        let mut files = DataFiles::default();
        files.add(graph);
        files
    }

    fn add(&mut self, graph: &Graph) {
        for node in graph.node_ids() {
            let NodeKind::Const(data) = &graph.node(node).kind else { continue };
            // What depends on symbols is in memory.
            let Some(file) = Some(data).filter(|data| !data.is_open()).and_then(|data| data.content().file()) else {
                continue;
            };
            if !self.0.iter().any(|known| Arc::ptr_eq(known, file)) {
                self.0.push(file.clone());
            }
        }
        graph.bodies().for_each(|body| self.add(body));
    }

    /// The result of what used the constants, unless they could not be read.
    ///
    /// # Errors
    /// A file could not be read, or was changed; else the error of the result.
    pub fn confirm<T>(&self, result: Result<T>) -> Result<T> {
        let failed = self.0.iter().find_map(|file| file.check().err());
        failed.map_or(result, |error| Err(Diagnostic::unreadable(error)))
    }
}
