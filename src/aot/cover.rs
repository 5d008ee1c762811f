//! Which plans the shapes of a request take: every shape has one, and most have the same.
//!
//! The shapes are a box of extents. A plan for many shapes holds in a part of it, which its conditions tell: for a whole box at
//! once where intervals decide them, else for its halves. Where no plan holds, one is made for a shape there.

use std::collections::BTreeSet;
use std::sync::Arc;

use tensorc_ir::DenseType;
use tensorc_ir::graph::{Graph, Value};
use tensorc_passes::template::{Place, Template};

use super::ExtentRange;
use super::division::PartRequest;
use super::open::OpenVariant;
use crate::compile::Report;
use crate::compiler::Specialize;
use crate::error::Error;
use crate::templates::{OpenModel, PlanAttempts};

/// Extents of the dimensions that a request leaves open.
pub type Ranges = Vec<ExtentRange>;

/// Plans for one shape that an artifact holds at most.
pub const MAX_VARIANTS: usize = 4096;
/// Parts of the box that are looked at, at most.
const MAX_PARTS: usize = 1 << 20;
/// Shapes of a plan by which its memory is measured.
const SAMPLES: usize = 1 << 12;

/// The types of sources by the extents of open dimensions.
#[derive(Clone)]
pub struct OpenTypes {
    types: Vec<DenseType>,
    /// Of each dimension, the sources and positions that have it.
    places: Vec<Vec<Place>>,
}

impl OpenTypes {
    /// Of the inputs of a model, with their types for one shape.
    pub fn new(graph: &Graph, names: &[String], types: Vec<DenseType>) -> OpenTypes {
        OpenTypes { types, places: names.iter().map(|name| OpenTypes::places(graph, name)).collect() }
    }

    /// The inputs and axes that have a dimension of this name.
    pub fn places(graph: &Graph, name: &str) -> Vec<Place> {
        let mut places = vec![];
        for (input, node) in graph.inputs().iter().enumerate() {
            if *graph.node(*node).name == *name {
                // A range of an input is that of its only axis.
                places.push((input, 0));
                continue;
            }
            let shape = graph.resolved(Value { node: *node, port: 0 }).shape;
            for (axis, dim) in shape.dims().unwrap_or_default().iter().enumerate() {
                if matches!(dim, tensorc_ir::Dim::Sym(id) if *graph.dims.name(*id) == *name) {
                    places.push((input, axis));
                }
            }
        }
        places
    }

    /// Adds a source, and a dimension for each of these positions of it.
    pub fn add(&mut self, numbers: DenseType, open: &[usize]) {
        let source = self.types.len();
        self.types.push(numbers);
        self.places.extend(open.iter().map(|position| vec![(source, *position)]));
    }

    /// The first place of each dimension.
    pub fn dimensions(&self) -> impl Iterator<Item = Place> {
        self.places.iter().map(|places| places[0])
    }

    /// The types for some extents.
    pub fn at(&self, extents: &[u64]) -> Vec<DenseType> {
        let mut dims: Vec<Vec<u64>> = self.types.iter().map(|ty| ty.dims.to_vec()).collect();
        for (places, extent) in self.places.iter().zip(extents) {
            places.iter().for_each(|(input, axis)| dims[*input][*axis] = *extent);
        }
        self.types.iter().zip(dims).map(|(ty, dims)| DenseType::new(ty.dtype, dims)).collect()
    }

    /// The dimension that stands at a place.
    pub fn dimension(&self, place: Place) -> Option<usize> {
        self.places.iter().position(|places| places.contains(&place))
    }

    /// The types for the least and the greatest extents of a box.
    pub fn corners(&self, ranges: &[ExtentRange]) -> [Vec<DenseType>; 2] {
        let corner = |of: fn(&ExtentRange) -> u64| self.at(&ranges.iter().map(of).collect::<Vec<_>>());
        [corner(|range| range.first), corner(|range| range.last)]
    }
}

/// The ranges of a template's symbols in a box, inside of their own; `None` if it holds nowhere there.
pub fn symbols_in(template: &Template, [least, greatest]: &[Vec<DenseType>; 2]) -> Option<(Vec<(i64, i64)>, bool)> {
    let [low, high] = [least, greatest].map(|types| template.numbers(types));
    let (mut ranges, mut whole) = (vec![], true);
    for ((symbol, low), high) in template.trace.symbols().iter().zip(low?).zip(high?) {
        let within = (low.max(symbol.range.0), high.min(symbol.range.1));
        whole &= within == (low, high);
        if within.0 > within.1 {
            return None;
        }
        ranges.push(within);
    }
    for ((source, position), known) in template.known_numbers() {
        let given = [least, greatest].map(|types| types[source].dims[position] as i64);
        if !(given[0]..=given[1]).contains(&known) {
            return None;
        }
        whole &= given == [known; 2];
    }
    Some((ranges, whole))
}

/// Whether a plan holds for all shapes of a box (`Some(true)`), for none, or for a part.
fn holds(template: &Template, corners: &[Vec<DenseType>; 2]) -> Option<bool> {
    let Some((ranges, whole)) = symbols_in(template, corners) else { return Some(false) };
    match template.trace.holds_within(&ranges) {
        Some(true) if !whole => None,
        decided => decided,
    }
}

/// Whether the conditions of a plan exclude a whole box, as that an extent is not greater than another.
fn excludes(template: &Template, corners: &[Vec<DenseType>; 2]) -> bool {
    symbols_in(template, corners).is_some_and(|(ranges, _)| template.trace.holds_within(&ranges) == Some(false))
}

/// The shape in the middle of a box.
fn middle(ranges: &[ExtentRange]) -> Vec<u64> {
    ranges.iter().map(|range| range.at((range.count() - 1) / 2)).collect()
}

/// Plans that cover a box.
#[derive(Default)]
pub struct Cover {
    /// Plans for many shapes, each with the boxes of shapes that take it. A shape takes the first that holds for it.
    pub open: Vec<(OpenVariant, Vec<Ranges>)>,
    /// Shapes that take a plan of their own.
    pub fixed: BTreeSet<Vec<u64>>,
    /// How many shapes and boxes of a part behind the first the model does not take, and why not the first of them: values tell in
    /// a run whether it is one of these.
    refused: Option<(usize, Error)>,
}

/// Finds plans for all shapes of a request.
pub struct CoverSearch<'a> {
    part: &'a PartRequest<'a>,
    cover: Cover,
    /// Models for many shapes, and how often plans of each have been made.
    models: Vec<(Arc<OpenModel>, PlanAttempts)>,
    parts: usize,
    report: Report,
}

impl<'a> CoverSearch<'a> {
    /// The plans for all shapes of a request.
    ///
    /// # Errors
    /// Too many shapes take a plan of their own.
    pub fn run(part: &'a PartRequest<'a>) -> Result<Cover, Error> {
        let (cover, report) = (Cover::default(), Report::default());
        let mut search = CoverSearch { part, cover, models: vec![], parts: 0, report };
        let all = part.ranges.clone();
        // A plan for one shape is better at it.
        let is_one = all.iter().all(|range| range.first.max(2) >= range.last);
        if is_one || part.request.gpu.is_some() || part.model.compiler().options().specialize == Specialize::Always {
            search.each_alone(&all, &mut vec![])?;
        } else {
            search.part(all)?;
        }
        search.settle();
        let Cover { open, fixed, refused } = &mut search.cover;
        match refused.take() {
            Some((_, error)) if fixed.is_empty() && open.iter().all(|(_, boxes)| boxes.is_empty()) => Err(error),
            _ => Ok(search.cover),
        }
    }

    fn each_alone(&mut self, ranges: &[ExtentRange], extents: &mut Vec<u64>) -> Result<(), Error> {
        let Some(range) = ranges.get(extents.len()) else { return self.alone(extents.clone()) };
        for i in 0..range.count() {
            extents.push(range.at(i));
            self.each_alone(ranges, extents)?;
            extents.pop();
        }
        Ok(())
    }

    /// Gives shapes that were to have plans of their own to plans that were made later.
    fn settle(&mut self) {
        let Cover { open, fixed, .. } = &mut self.cover;
        fixed.retain(|extents| {
            let types = self.part.types.at(extents);
            let here = [types.clone(), types];
            let found = open.iter_mut().find(|(plan, _)| holds(&plan.template, &here) == Some(true));
            if let Some((_, parts)) = found {
                parts.push(extents.iter().map(|extent| ExtentRange::all(*extent, *extent)).collect());
                return false;
            }
            true
        });
    }

    /// Gives a shape a plan of its own. A range with shapes that the model does not take is refused at the first of them, as far as
    /// that costs little.
    fn alone(&mut self, extents: Vec<u64>) -> Result<(), Error> {
        const CONFIRMED: usize = 16;
        if self.cover.fixed.len() < CONFIRMED || !self.part.refuses {
            match self.part.typed(&self.part.types.at(&extents)) {
                Err(error @ Error::Diagnostic(_)) if !self.part.refuses => return self.refuse(&extents, error),
                typed => typed.map_err(|error| self.part.within(&extents, error))?,
            };
        }
        self.cover.fixed.insert(extents);
        match self.cover.fixed.len() <= MAX_VARIANTS {
            true => Ok(()),
            false => Err(Error::Artifact(format!(
                "more than {MAX_VARIANTS} combinations of extents in the ranges take a plan of their own"
            ))),
        }
    }

    /// Notes a shape that the model does not take.
    fn refuse(&mut self, extents: &[u64], error: Error) -> Result<(), Error> {
        let part = self.part;
        let (count, _) = self.cover.refused.get_or_insert_with(|| (0, part.within(extents, error)));
        *count += 1;
        match *count <= MAX_VARIANTS {
            true => Ok(()),
            false => Err(Error::Artifact(format!(
                "more than {MAX_VARIANTS} combinations of the numbers {} are none that the model takes",
                part.names.join(", ")
            ))),
        }
    }

    /// Why the model takes no corner of a box of a part behind the first, nor its middle, if it does not, and what stands there.
    fn refusal(&self, ranges: &[ExtentRange]) -> Option<(Vec<u64>, Error)> {
        const AXES: usize = 6;
        let long: Vec<usize> = (0..ranges.len()).filter(|i| ranges[*i].count() > 1).collect();
        if self.part.refuses || long.len() > AXES {
            return None;
        }
        let end = |corner: usize, i: usize| match long.iter().position(|axis| *axis == i) {
            Some(bit) if corner >> bit & 1 == 1 => ranges[i].last,
            _ => ranges[i].first,
        };
        let corners = (0..1 << long.len()).map(|corner| (0..ranges.len()).map(|i| end(corner, i)).collect());
        let mut found = None;
        for extents in std::iter::once(middle(ranges)).chain(corners) {
            match self.part.typed(&self.part.types.at(&extents)) {
                Err(error @ Error::Diagnostic(_)) => found = Some((extents, error)),
                _ => return None,
            }
        }
        found
    }

    fn part(&mut self, ranges: Ranges) -> Result<(), Error> {
        self.parts += 1;
        if self.parts > MAX_PARTS {
            return Err(Error::Artifact("which plans hold in the ranges takes too many tests".to_owned()));
        }
        let corners = self.part.types.corners(&ranges);
        let is_one = ranges.iter().all(|range| range.count() == 1);
        loop {
            let (mut undecided, mut excluded) = (false, false);
            for (plan, parts) in &mut self.cover.open {
                excluded |= excludes(&plan.template, &corners);
                match holds(&plan.template, &corners) {
                    Some(true) if !undecided => {
                        parts.push(ranges);
                        return Ok(());
                    }
                    Some(false) => {}
                    _ => undecided = true,
                }
            }
            if undecided && !is_one {
                return self.halves(&ranges);
            }
            if excluded && let Some((extents, error)) = self.refusal(&ranges) {
                return self.refuse(&extents, error);
            }
            let point = middle(&ranges);
            match self.plan_for(&point)? {
                true => {}
                false if is_one => return self.alone(point),
                false => return self.halves(&ranges),
            }
        }
    }

    fn halves(&mut self, ranges: &[ExtentRange]) -> Result<(), Error> {
        // One and none are other plans: what they do not share with the rest is told apart first.
        let is_small = |i: &usize| ranges[*i].first < 2 && ranges[*i].count() > 1;
        let longest = (0..ranges.len()).max_by_key(|i| (is_small(i), ranges[*i].count())).unwrap_or(0);
        let range = ranges[longest];
        let middle = if range.first < 2 { range.first } else { range.at((range.count() - 1) / 2) };
        for half in [ExtentRange { last: middle, ..range }, ExtentRange { first: middle + range.step, ..range }] {
            let mut ranges = ranges.to_vec();
            ranges[longest] = half;
            self.part(ranges)?;
        }
        Ok(())
    }

    /// Makes plans for many shapes until one holds for this one; whether there is one.
    fn plan_for(&mut self, extents: &[u64]) -> Result<bool, Error> {
        let types = self.part.types.at(extents);
        let Some(model) = self.part.open(&types, &mut self.report) else { return Ok(false) };
        let known = self.models.iter().position(|(other, _)| Arc::ptr_eq(other, &model));
        let number = known.unwrap_or_else(|| {
            self.models.push((model, PlanAttempts::default()));
            self.models.len() - 1
        });
        let here = [types.clone(), types.clone()];
        loop {
            let (model, attempts) = &mut self.models[number];
            let Some(template) = attempts.next(model.template(), &types) else { return Ok(false) };
            let Some(plan) = OpenVariant::new(self.part, template, model.shape())? else {
                attempts.refused();
                return Ok(false);
            };
            let found = holds(&plan.template, &here) == Some(true);
            self.cover.open.push((plan, vec![]));
            if found {
                return Ok(true);
            }
        }
    }
}

/// Shapes of boxes by which the most memory is found, at most [`SAMPLES`].
pub struct Samples {
    /// The largest of as many boxes, and others between.
    pub shapes: BTreeSet<Vec<u64>>,
    /// Whether there are no others.
    pub are_all: bool,
}

impl Samples {
    /// Samples of some boxes.
    pub fn of(parts: &[Ranges]) -> Samples {
        let mut largest: Vec<&Ranges> = parts.iter().collect();
        let elements = |part: &Ranges| part.iter().fold(1u64, |n, range| n.saturating_mul(range.last.max(1)));
        largest.sort_by_key(|part| std::cmp::Reverse(elements(part)));
        largest.truncate(SAMPLES);
        let share = (SAMPLES / largest.len().max(1)) as u64;
        let (mut shapes, mut are_all) = (BTreeSet::new(), largest.len() == parts.len());
        for part in largest {
            let count = part.iter().fold(1u64, |n, range| n.saturating_mul(range.count()));
            are_all &= share >= count;
            for i in 0..share.min(count) {
                // The last shape first; steps that have no factor in common with the numbers of extents reach all of them.
                let mut rest = if share >= count { i } else { i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % count };
                let of = |range: &ExtentRange| {
                    let n = range.count();
                    let extent = range.at(n - 1 - rest % n);
                    rest /= n;
                    extent
                };
                shapes.insert(part.iter().map(of).collect());
            }
        }
        Samples { shapes, are_all }
    }
}
