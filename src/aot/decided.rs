//! Branches that all shapes of a request take alike.

use tensorc_ir::DenseType;
use tensorc_ir::graph::{Graph, Value};
use tensorc_passes::infer::{bind, infer_graph};
use tensorc_passes::parts::Facts;
use tensorc_passes::template::TemplateRequest;
use tensorc_passes::values::StaticValues;

use super::ExtentRange;
use super::cover::{Ranges, symbols_in};
use super::division::PartRequest;
use crate::compiler::Compiler;

/// Boxes of extents that are looked at, at most.
const MAX_BOXES: usize = 81;

/// Whether a condition holds for all inputs of a part, the first, of which `graph` has the beginning: `None` if it holds for some of them
/// only, or values decide it.
pub fn holds_for_all(part: &PartRequest<'_>, graph: &Graph, condition: Value) -> Option<bool> {
    let mut graph = graph.clone();
    graph.set_outputs([("condition".into(), condition)]);
    graph.remove_dead();
    let mut found = None;
    for ranges in boxes(&part.ranges)? {
        let holds = holds_in(part, &graph, &part.types.corners(&ranges))?;
        if found.is_some_and(|other| other != holds) {
            return None;
        }
        found = Some(holds);
    }
    found
}

/// The box of some ranges as boxes in which an extent is one number or from 2 on, as symbols are; `None` if they are too many.
fn boxes(ranges: &[ExtentRange]) -> Option<Vec<Ranges>> {
    let mut all: Vec<Ranges> = vec![vec![]];
    for range in ranges {
        let small = (0..range.count()).map(|i| range.at(i)).take_while(|n| *n < 2);
        let mut pieces: Vec<ExtentRange> = small.map(|n| ExtentRange::all(n, n)).collect();
        let above = pieces.len() as u64;
        if above < range.count() {
            pieces.push(ExtentRange { first: range.at(above), ..*range });
        }
        let with_each = |own: &Ranges| pieces.iter().map(|piece| [&own[..], &[*piece]].concat()).collect::<Vec<_>>();
        all = all.iter().flat_map(with_each).collect();
        if all.len() > MAX_BOXES {
            return None;
        }
    }
    Some(all)
}

/// Whether the output of a graph holds for all types of inputs in a box.
fn holds_in(part: &PartRequest<'_>, graph: &Graph, corners: &[Vec<DenseType>; 2]) -> Option<bool> {
    let compiler = part.model.compiler();
    // With the greatest as examples: conditions that hold there are those that may hold for all.
    let facts = Facts::of_inputs(graph, &corners[1]);
    match (TemplateRequest { graph, facts: &facts }).like() {
        Some(mut template) => {
            let holds = template.change(|graph| value(compiler, graph))?;
            let (ranges, whole) = symbols_in(&template, corners)?;
            (whole && template.trace.holds_within(&ranges) == Some(true)).then_some(holds)
        }
        None => {
            let mut graph = graph.clone();
            bind(&mut graph, &corners[1]).ok()?;
            value(compiler, &mut graph).filter(|_| corners[0] == corners[1])
        }
    }
}

/// The output of a graph, a scalar, if its elements follow from types.
fn value(compiler: &Compiler, graph: &mut Graph) -> Option<bool> {
    let static_bytes = compiler.options().passes.static_bytes;
    infer_graph(graph, compiler.registry(), static_bytes).ok()?;
    let output = graph.outputs()[0].1;
    let data = StaticValues::new(compiler.registry(), static_bytes).get(graph, output)?;
    Some(data.item()?.as_i64() != 0)
}
