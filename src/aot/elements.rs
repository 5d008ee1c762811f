//! What whole numbers that decide shapes may be: as a request says, or as the operators behind them take them.

use tensorc_ir::graph::Value;
use tensorc_passes::parts::{MAX_EXTENT, ShapeSource};

use super::ExtentRange;
use super::division::PartRequest;
use crate::error::Error;

/// Why the range of a number does not follow from the model.
enum Unbounded {
    /// Tensors grow with it.
    Grows,
    /// It is not that operators take all numbers up to one.
    Scattered,
}

/// What is tried in place of numbers that are not known yet.
const OTHERS: [u64; 4] = [1, 0, 2, MAX_EXTENT];

/// Finds the ranges of numbers that are elements of `sources`, each with the position of its first number.
///
/// # Errors
/// A range follows neither from the request nor from the model.
pub fn find_ranges(part: &mut PartRequest<'_>, sources: &[(&ShapeSource, usize)]) -> Result<(), Error> {
    let own = |(source, first): &(&ShapeSource, usize)| *first..*first + source.open_positions().len();
    let mut unknown = vec![];
    for number in sources.iter().flat_map(own) {
        match part.request.ranges.get(&part.names[number]) {
            Some(stated) => part.ranges[number] = *stated,
            None => unknown.push(number),
        }
    }
    let mut found = vec![];
    for one in sources {
        let (source, name) = (one.0, &part.model.graph().node(one.0.value.node).name);
        if source.numbers.dtype.is_float() {
            let why = "decides shapes by floats, for which a model cannot be compiled ahead of time";
            return Err(Error::Artifact(format!("`{name}` {why}")));
        }
        for number in own(one).filter(|number| unknown.contains(number)) {
            let range = greatest(part, number, &unknown).and_then(|(last, saturates)| match saturates {
                // One of several that are bounded probably has to agree with others.
                false if own(one).len() > 1 => Err(Unbounded::Scattered),
                _ => Ok((number, last, saturates)),
            });
            found.push(range.map_err(|why| {
                let why = match why {
                    Unbounded::Grows => "tensors grow with it without limit",
                    Unbounded::Scattered => "which numbers the operators behind it take does not follow from the model",
                };
                let number = &part.names[number];
                let how = format!("give --shape {number}=FIRST..LAST, what it may be");
                Error::Artifact(format!("`{name}` decides shapes, and {why}: {how}"))
            })?);
        }
    }
    for (number, last, saturates) in found {
        part.ranges[number] = ExtentRange::all(0, last);
        part.origins[number].saturates = saturates;
    }
    Ok(())
}

/// The greatest value of a number that operators take, where what is known has its greatest; and whether greater ones are as that.
fn greatest(part: &PartRequest<'_>, number: usize, unknown: &[usize]) -> Result<(u64, bool), Unbounded> {
    let mut found: Option<(u64, bool)> = None;
    for other in OTHERS {
        let takes = |n: u64| {
            let mut extents: Vec<u64> = part.ranges.iter().map(|range| range.last).collect();
            unknown.iter().for_each(|i| extents[*i] = other);
            extents[number] = n;
            let (graph, _) = part.typed(&part.types.at(&extents)).ok()?;
            // Inputs stand for the numbers themselves.
            let nodes = graph.node_ids().into_iter().filter(|node| !graph.inputs().contains(node));
            let ports = |node| (0..graph.node(node).types.len() as u16).map(move |port| Value { node, port });
            let types = nodes.flat_map(ports).filter_map(|v| graph.dense(v).ok());
            Some(types.fold(0u64, |bytes, ty| bytes.saturating_add(ty.bytes())))
        };
        let one = match greatest_of(&takes) {
            Err(Unbounded::Scattered) => continue,
            one => one?,
        };
        found = Some(match found {
            Some((last, true)) if one.1 => (last.max(one.0), true),
            Some(bounded @ (_, false)) if one.1 => bounded,
            Some((last, false)) => (last.min(one.0), false),
            _ => one,
        });
        if unknown.len() == 1 {
            break;
        }
    }
    found.ok_or(Unbounded::Scattered)
}

/// The same where `takes` says how many bytes all tensors have, if operators take a value.
fn greatest_of(takes: &dyn Fn(u64) -> Option<u64>) -> Result<(u64, bool), Unbounded> {
    if let Some(bytes) = takes(MAX_EXTENT) {
        if takes(MAX_EXTENT / 2) != Some(bytes) {
            return Err(Unbounded::Grows);
        }
        let (mut below, mut last) = (0, MAX_EXTENT / 2);
        while below < last {
            let middle = below + (last - below) / 2;
            if takes(middle) == Some(bytes) { last = middle } else { below = middle + 1 }
        }
        // Beside these numbers it decides the size of no tensor, which says nothing of what it may be.
        return if last == 0 { Err(Unbounded::Scattered) } else { Ok((last, true)) };
    }
    let mut last = [1, 0].into_iter().find(|n| takes(*n).is_some()).ok_or(Unbounded::Scattered)?;
    let mut refused = MAX_EXTENT;
    while last + 1 < refused {
        let middle = last + (refused - last) / 2;
        *(if takes(middle).is_some() { &mut last } else { &mut refused }) = middle;
    }
    let beyond = last > 0 && (2..=4).any(|factor| takes(last * factor).is_some());
    let below = [last / 2, last / 3, last.saturating_sub(1)].into_iter().any(|n| n > 0 && takes(n).is_none());
    if beyond || below { Err(Unbounded::Scattered) } else { Ok((last, false)) }
}
