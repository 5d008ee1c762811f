//! The e-graph of a region: its language, what is known of each class, and constructors that keep views in one
//! form (neighbours composed, identities dropped).
//!
//! A class is a tensor, an e-node a primitive with one result. Primitives and their types are interned outside
//! the e-graph, so that e-nodes stay small.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

use egg::{Analysis, DidMerge, EClass, EGraph, Id, Language};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tensorc_ir::graph::Value;
use tensorc_ir::index::Index;
use tensorc_ir::prim::{Contraction, Prim, Reduction, View};
use tensorc_ir::scalar::{Scalar, ScalarFn};
use tensorc_ir::views::{compose, in_bounds};
use tensorc_ir::{DenseType, Extent, Extents, TensorData};

use super::affine::{Affine, affine};
use crate::fold_constants::folds;
use crate::options::Options;

pub(super) type Args = SmallVec<[Id; 4]>;

/// One way to get a tensor.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum TensorTerm {
    /// It is there, by position in the table of leaves.
    Given(u32),
    /// A primitive, by position in its table, and its operands.
    Prim(u32, Args),
}

impl Language for TensorTerm {
    type Discriminant = (bool, u32);

    fn discriminant(&self) -> (bool, u32) {
        match self {
            TensorTerm::Given(i) => (false, *i),
            TensorTerm::Prim(i, _) => (true, *i),
        }
    }

    fn matches(&self, other: &TensorTerm) -> bool {
        self.discriminant() == other.discriminant() && self.children().len() == other.children().len()
    }

    fn children(&self) -> &[Id] {
        match self {
            TensorTerm::Given(_) => &[],
            TensorTerm::Prim(_, args) => args,
        }
    }

    fn children_mut(&mut self) -> &mut [Id] {
        match self {
            TensorTerm::Given(_) => &mut [],
            TensorTerm::Prim(_, args) => args,
        }
    }
}

impl TensorTerm {
    pub fn args(&self) -> &[Id] {
        self.children()
    }
}

/// A tensor that is not computed in the region.
#[derive(Clone, Debug)]
pub(super) enum Leaf {
    /// A value of the graph.
    Value(Value),
    /// A constant that a rule made.
    New(TensorData),
}

/// What holds for every form of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TensorFacts {
    pub ty: Arc<DenseType>,
    /// It is computed while compiling.
    pub constant: bool,
    /// Another one after each change of the class.
    version: u32,
}

/// The tables behind e-nodes, and the analysis that keeps [`TensorFacts`].
pub(super) struct TensorAnalysis {
    pub leaves: Vec<(Leaf, TensorFacts)>,
    pub prims: Vec<(Prim, Arc<DenseType>)>,
    interned: FxHashMap<(Prim, Arc<DenseType>), u32>,
    options: Options,
    /// How often a class was made or changed.
    changes: u32,
}

pub(super) type TensorTerms = EGraph<TensorTerm, TensorAnalysis>;

impl Analysis<TensorTerm> for TensorAnalysis {
    type Data = TensorFacts;

    fn make(egraph: &mut TensorTerms, term: &TensorTerm, _: Id) -> TensorFacts {
        match term {
            TensorTerm::Given(i) => egraph.analysis.leaves[*i as usize].1.clone(),
            TensorTerm::Prim(i, args) => {
                let (prim, ty) = &egraph.analysis.prims[*i as usize];
                let constant = args.iter().all(|a| egraph[*a].data.constant) && {
                    let inputs: SmallVec<[&DenseType; 4]> = args.iter().map(|a| &*egraph[*a].data.ty).collect();
                    folds(prim, &inputs, &[ty], &egraph.analysis.options)
                };
                TensorFacts { ty: ty.clone(), constant, version: 0 }
            }
        }
    }

    fn merge(&mut self, to: &mut TensorFacts, from: TensorFacts) -> DidMerge {
        let constant = to.constant || from.constant;
        let changed = DidMerge(constant != to.constant, constant != from.constant);
        self.changes += 1;
        (to.constant, to.version) = (constant, self.changes);
        changed
    }
}

/// Where an e-node comes from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    /// Position of the rule that made it.
    pub rule: usize,
    /// The class that the rule was applied to.
    pub site: Id,
}

/// What a rule saw of the e-graph: applied once more, it would find the same as long as none of that changes.
#[derive(Debug, Default)]
struct Seen {
    /// Whether a rule is at work.
    looks: Cell<bool>,
    /// Classes and their versions.
    classes: RefCell<Vec<(Id, u32)>>,
    /// Whether it asked for more than classes hold.
    more: Cell<bool>,
}

/// A map, which is held so that no other has its address, and its coefficients in an operand if it is affine.
type Coefficients = (Arc<ScalarFn>, Option<Arc<Affine>>);

/// An e-graph with its bookkeeping.
pub(super) struct TensorSpace {
    pub egraph: TensorTerms,
    seen: Seen,
    /// The coefficients of maps in one of their operands, by the address of the map and the operand.
    affine: FxHashMap<(usize, usize), Coefficients>,
    /// E-nodes that rules made, with the operands they had then.
    pub origins: Vec<(TensorTerm, Origin)>,
    /// What is at work.
    pub at_work: Option<Origin>,
}

impl TensorSpace {
    pub fn new(options: Options) -> TensorSpace {
        let interned = FxHashMap::default();
        let known = TensorAnalysis { leaves: vec![], prims: vec![], interned, options, changes: 0 };
        TensorSpace {
            egraph: TensorTerms::new(known),
            seen: Seen::default(),
            affine: FxHashMap::default(),
            origins: vec![],
            at_work: None,
        }
    }

    /// Forgets what was seen so far.
    pub fn begin_look(&mut self) {
        self.seen.classes.get_mut().clear();
        self.seen.more.set(false);
        self.seen.looks.set(true);
    }

    /// What was seen since [`TensorSpace::begin_look`]: classes, once each; `None` if it cannot be told whether it changes.
    pub fn end_look(&mut self) -> Option<Box<[(Id, u32)]>> {
        self.seen.looks.set(false);
        let seen = self.seen.classes.get_mut();
        seen.sort_unstable();
        seen.dedup();
        (!self.seen.more.get()).then(|| seen.as_slice().into())
    }

    /// Whether classes are as they were seen.
    pub fn is_unchanged(&self, seen: &[(Id, u32)]) -> bool {
        seen.iter().all(|(id, version)| self.egraph[*id].data.version == *version)
    }

    /// The class, which is noted as seen.
    fn see(&self, id: Id) -> &EClass<TensorTerm, TensorFacts> {
        let class = &self.egraph[id];
        if self.seen.looks.get() {
            self.seen.classes.borrow_mut().push((class.id, class.data.version));
        }
        class
    }

    /// The coefficients of a map in one of its operands ([`affine`]).
    pub fn affine(&mut self, f: &Arc<ScalarFn>, variable: usize) -> Option<Arc<Affine>> {
        let entry = self.affine.entry((Arc::as_ptr(f).addr(), variable));
        entry.or_insert_with(|| (f.clone(), affine(f, variable).map(Arc::new))).1.clone()
    }

    /// Tells which class the rule at work looks at.
    pub fn look_at(&mut self, site: Id) {
        self.at_work = self.at_work.map(|o| Origin { site, ..o });
    }

    pub fn leaf(&mut self, leaf: Leaf, ty: DenseType, constant: bool) -> Id {
        let leaves = &mut self.egraph.analysis.leaves;
        leaves.push((leaf, TensorFacts { ty: Arc::new(ty), constant, version: 0 }));
        let term = TensorTerm::Given(leaves.len() as u32 - 1);
        self.egraph.add(term)
    }

    /// A constant of a rule's own.
    pub fn constant(&mut self, data: TensorData) -> Id {
        let same = |(leaf, _): &(Leaf, TensorFacts)| matches!(leaf, Leaf::New(d) if *d == data);
        match self.egraph.analysis.leaves.iter().position(same) {
            Some(i) => self.egraph.add(TensorTerm::Given(i as u32)),
            None => {
                let ty = data.ty.clone();
                self.leaf(Leaf::New(data), ty, true)
            }
        }
    }

    /// A primitive as it is.
    pub fn prim(&mut self, prim: Prim, ty: DenseType, args: &[Id]) -> Id {
        let known = &mut self.egraph.analysis;
        let key = (prim, Arc::new(ty));
        let i = match known.interned.get(&key) {
            Some(i) => *i,
            None => {
                known.prims.push(key.clone());
                let i = known.prims.len() as u32 - 1;
                known.interned.insert(key, i);
                i
            }
        };
        let term = TensorTerm::Prim(i, args.iter().map(|a| self.egraph.find(*a)).collect());
        if let Some(origin) = self.at_work
            && self.egraph.lookup(term.clone()).is_none()
        {
            self.origins.push((term.clone(), origin));
        }
        self.egraph.add(term)
    }

    pub fn find(&self, id: Id) -> Id {
        self.see(id).id
    }

    pub fn ty(&self, id: Id) -> &DenseType {
        &self.egraph[id].data.ty
    }

    pub fn dims(&self, id: Id) -> &Extents {
        &self.ty(id).dims
    }

    pub fn is_constant(&self, id: Id) -> bool {
        // A constant stays one.
        self.egraph[id].data.constant || self.see(id).data.constant
    }

    pub fn of(&self, term: &TensorTerm) -> Option<(&Prim, &DenseType)> {
        match term {
            TensorTerm::Prim(i, _) => self.egraph.analysis.prims.get(*i as usize).map(|(p, ty)| (p, &**ty)),
            TensorTerm::Given(_) => None,
        }
    }

    /// The primitives that compute a class, with operands.
    pub fn forms(&self, id: Id) -> Vec<(Prim, Args)> {
        let form = |term: &TensorTerm| Some((self.of(term)?.0.clone(), term.children().iter().copied().collect()));
        self.see(id).nodes.iter().filter_map(form).collect()
    }

    pub fn contractions(&self, id: Id) -> Vec<(Arc<Contraction>, [Id; 2])> {
        let form = |term: &TensorTerm| match (self.of(term)?.0, term.children()) {
            (Prim::Contract(c), [l, r]) => Some((c.clone(), [*l, *r])),
            _ => None,
        };
        self.see(id).nodes.iter().filter_map(form).collect()
    }

    pub fn maps(&self, id: Id) -> Vec<(Arc<ScalarFn>, Args)> {
        let form = |term: &TensorTerm| match self.of(term)?.0 {
            Prim::Map(f) => Some((f.clone(), term.children().iter().copied().collect())),
            _ => None,
        };
        self.see(id).nodes.iter().filter_map(form).collect()
    }

    pub fn views(&self, id: Id) -> Vec<(Arc<View>, Id)> {
        let form = |term: &TensorTerm| match self.of(term)?.0 {
            Prim::View(v) => Some((v.clone(), term.children()[0])),
            _ => None,
        };
        self.see(id).nodes.iter().filter_map(form).collect()
    }

    /// The classes with their e-nodes, in the order of classes.
    pub fn snapshot(&self) -> BTreeMap<Id, Vec<TensorTerm>> {
        self.egraph.classes().map(|c| (c.id, c.nodes.clone())).collect()
    }

    /// The class of a contraction, if it is there already.
    pub fn known_contract(&self, c: &Arc<Contraction>, lhs: Id, rhs: Id) -> Option<Id> {
        self.seen.more.set(true);
        let ty = DenseType::new(self.ty(lhs).dtype, c.extents.range(..c.out_rank));
        let i = self.egraph.analysis.interned.get(&(Prim::Contract(c.clone()), Arc::new(ty)))?;
        self.egraph.lookup(TensorTerm::Prim(*i, [lhs, rhs].into_iter().collect()))
    }

    pub fn contract(&mut self, c: Contraction, lhs: Id, rhs: Id) -> Id {
        let ty = DenseType::new(self.ty(lhs).dtype, c.extents.range(..c.out_rank));
        self.prim(Prim::Contract(Arc::new(c)), ty, &[lhs, rhs])
    }

    /// A view, composed with views behind it; nothing if it changes nothing.
    pub fn view(&mut self, arg: Id, map: Vec<Index>, fill: Option<Scalar>, dims: impl Into<Extents>) -> Id {
        let dims = &dims.into();
        let (mut arg, mut view) = (self.find(arg), View { map, fill });
        // A class may hold a view of itself.
        let mut passed = vec![];
        loop {
            let from = self.dims(arg).clone();
            view.fill = view.fill.filter(|_| !in_bounds(&view.map, &from, dims));
            if view.is_identity(&from, dims) {
                return arg;
            }
            passed.push(arg);
            let behind = self.views(arg).into_iter().find_map(|(first, source)| {
                let source = self.find(source);
                let both = compose(&first, self.dims(source), &view, &from, dims)?;
                (!passed.contains(&source)).then_some((source, both))
            });
            let Some(next) = behind else { break };
            (arg, view) = next;
        }
        let ty = DenseType::new(self.ty(arg).dtype, dims);
        self.prim(Prim::View(Arc::new(view)), ty, &[arg])
    }

    /// An element-wise function with one result of shape `dims`, to which all operands broadcast.
    pub fn map(&mut self, f: ScalarFn, args: &[Id], dims: impl Into<Extents>) -> Option<Id> {
        let dims = dims.into();
        let (f, used) = f.without_unused();
        let args: Args = used.iter().filter_map(|i| args.get(*i).copied()).collect();
        let dtype = *f.output_dtypes().first()?;
        if f.is_identity() && *self.dims(args[0]) == dims {
            return Some(args[0]);
        }
        Some(self.prim(Prim::Map(Arc::new(f)), DenseType::new(dtype, dims), &args))
    }

    pub fn concat(&mut self, args: &[Id], axis: usize) -> Option<Id> {
        let mut ty = self.ty(*args.first()?).clone();
        ty.dims.set(axis, args.iter().map(|a| self.dims(*a).at(axis)).sum::<Extent>());
        Some(match args {
            [one] => *one,
            _ => self.prim(Prim::Concat { axis }, ty, args),
        })
    }

    pub fn reduce(&mut self, r: Reduction, args: &[Id]) -> Option<Id> {
        let dims = r.output_dims(self.dims(*args.first()?));
        let ty = DenseType::new(*r.finish.output_dtypes().first()?, &dims);
        Some(self.prim(Prim::Reduce(Arc::new(r)), ty, args))
    }
}

/// The shape that operands of these shapes broadcast to together.
pub(super) fn broadcast<'a>(shapes: impl IntoIterator<Item = &'a Extents>) -> Extents {
    shapes.into_iter().fold(Extents::default(), |out, dims| {
        let rank = out.len().max(dims.len());
        let at = |dims: &Extents, i: usize| (i + dims.len()).checked_sub(rank).map_or(Extent::ONE, |i| dims.at(i));
        let joined = |a: Extent, b: Extent| if !b.is_surely(1) && a.is_repeated_along(b) { b } else { a };
        (0..rank).map(|i| joined(at(&out, i), at(dims, i))).collect()
    })
}

#[cfg(test)]
mod tests {
    use tensorc_ir::DType;

    use super::*;
    use crate::egraph::rebuild;

    #[test]
    fn what_was_seen_changes_with_its_class_only() {
        let mut space = TensorSpace::new(Options::default());
        let ty = DenseType::new(DType::F32, [4]);
        let leaf = |space: &mut TensorSpace, node| {
            let value = Value { node: tensorc_ir::graph::NodeId(node), port: 0 };
            space.leaf(Leaf::Value(value), ty.clone(), false)
        };
        let [a, b, c] = [0, 1, 2].map(|node| leaf(&mut space, node));
        let negated = |space: &mut TensorSpace, x| {
            let f = ScalarFn::build(&[DType::F32], |_, x| vec![-&x[0]]).expect("a function");
            space.map(f, &[x], [4]).expect("a map")
        };
        let (of_a, of_b) = (negated(&mut space, a), negated(&mut space, b));
        let look = |space: &mut TensorSpace, id| {
            space.begin_look();
            space.maps(id);
            space.end_look().expect("classes say all")
        };
        let (seen_a, seen_c) = (look(&mut space, of_a), look(&mut space, c));
        assert!(space.is_unchanged(&seen_a));
        space.egraph.union(a, b);
        rebuild(&mut space.egraph);
        assert_eq!(space.egraph.find(of_a), space.egraph.find(of_b), "equal operands make them equal");
        assert!(!space.is_unchanged(&seen_a) && space.is_unchanged(&seen_c));
        let again = look(&mut space, of_b);
        assert!(space.is_unchanged(&again));
        space.begin_look();
        space.is_constant(c);
        let asked = space.end_look().expect("classes say all");
        let constant = space.leaf(Leaf::New(TensorData::splat(&[4], Scalar::f32(0.0))), ty.clone(), true);
        space.egraph.union(c, constant);
        rebuild(&mut space.egraph);
        assert!(!space.is_unchanged(&asked), "it is constant now");
    }
}
