//! Attention in one kernel: scores exist in registers, a tile at a time.
//!
//! A block has a tile of queries and walks the keys in tiles. Maxima and sums of a row of scores are those of an online
//! softmax: what was accumulated is scaled whenever the maximum grows (Milakov and Gimelshein, "Online normalizer
//! calculation for softmax", 2018; Dao, "FlashAttention-2", 2023). [`units`] computes both products by matrix units,
//! [`plain`] by ordinary multiplications; the threads that share a row meet by shuffles. Where there are too few queries to keep
//! a GPU busy, several blocks share the keys, and a second kernel ([`join`]) puts together what they leave.

mod fetch;
mod join;
mod plain;
mod units;

use tensorc_abi::{Attention, MatrixLayout};
use tensorc_ir::diag::Result;
use tensorc_ir::graph::Value;
use tensorc_ir::index::{Index, delinearize, linearize, unbounded};
use tensorc_ir::kir::{Buf, Kernel, KernelBuilder, LoopKind, MemorySpace as Memory, Operand};
use tensorc_ir::scalar::{CmpOp, Scalar, ScalarFn, ScalarOp};
use tensorc_ir::views::identity_map;
use tensorc_ir::{DType, Extent};
use tensorc_schedule::access::MergedAxes;
use tensorc_schedule::flash::{FlashTile, KeySplits, Left, uses_matrix_units};
use tensorc_schedule::recognise::attention::Attended;

use super::loops::{below, launch, range, set_groups};
use super::{fixed, next_multiple};
use crate::emit::cluster::Cluster;
use crate::emit::inline::{Bound, Inliner};
use crate::emit::math::Math;
use crate::emit::math::internal;

/// A part of a matrix in the registers of a thread: in each of its rows, pieces of neighbours.
#[derive(Clone, Debug)]
struct Held {
    registers: Buf,
    /// Registers from one row to the next, and from one piece to the next.
    row_step: u64,
    piece_step: u64,
    pieces: u64,
    width: u64,
    /// The column of the first element, and columns from one piece to the next.
    first: Index,
    apart: u64,
}

impl Held {
    fn at(&self, row: &Index, piece: &Index, l: &Index) -> Index {
        row.scale(self.row_step as i64).add(&piece.scale(self.piece_step as i64)).add(l)
    }

    fn column(&self, piece: &Index) -> Index {
        self.first.add(&piece.scale(self.apart as i64))
    }

    /// The body for every element of a row: its register and its column.
    fn each(
        &self,
        e: &mut Inliner<'_>,
        row: &Index,
        body: &mut dyn FnMut(&mut Inliner<'_>, Index, Index) -> Result<()>,
    ) -> Result<()> {
        e.looped("j", range(self.pieces), LoopKind::Unroll, |e, j| {
            e.looped("l", range(self.width), LoopKind::Unroll, |e, l| {
                body(e, self.at(row, &j, &l), self.column(&j).add(&l))
            })
        })
    }
}

/// What a thread has: some rows of scores and of sums, which it shares with threads whose numbers differ in some bits.
struct ThreadRows {
    scores: Held,
    sums: Held,
    rows: u64,
    /// The first row in the tile, and rows from one to the next.
    first: Index,
    apart: u64,
    /// Distances of shuffles.
    lanes: &'static [u32],
}

/// How both products are computed.
trait Core {
    fn shape(&self) -> FlashTile;
    /// Shared memory.
    fn arrays(&self) -> Vec<(DType, u64)>;
    /// The part of a thread, with registers for it.
    fn own(&self, e: &mut Inliner<'_>, thread: &Index) -> ThreadRows;
    /// Brings the queries of a block, and what else can begin.
    fn begin(&self, e: &mut Inliner<'_>, block: &BlockState<'_>) -> Result<()>;
    /// Computes the products of queries and the keys of tile `step`.
    fn scores(&self, e: &mut Inliner<'_>, block: &BlockState<'_>, own: &ThreadRows, step: &Index) -> Result<()>;
    /// Adds the values of a tile, weighted by what is in the place of scores.
    fn values(&self, e: &mut Inliner<'_>, block: &BlockState<'_>, own: &ThreadRows, step: &Index) -> Result<()>;
}

/// What all threads of a block know.
struct BlockState<'a> {
    thread: Index,
    shared: &'a [Buf],
    /// Its first query.
    first: Index,
    /// Which part of the keys it has, the first tile of that, and the one behind the last.
    part: Index,
    tiles: [Index; 2],
    /// The matrices of queries, keys and values: where they begin, and their steps.
    q: fetch::SourceMatrix,
    k: fetch::SourceMatrix,
    v: fetch::SourceMatrix,
}

impl BlockState<'_> {
    /// The body, if a tile of keys comes before the end of the block's.
    fn ahead(
        &self,
        e: &mut Inliner<'_>,
        tile: &Index,
        body: impl FnOnce(&mut Inliner<'_>) -> Result<()>,
    ) -> Result<()> {
        let [tile, end] = [tile, &self.tiles[1]].map(|index| e.b.index_value(index.clone()));
        let inside = e.b.op(ScalarOp::Cmp(CmpOp::Lt), &[tile, end]);
        e.when(inside, body)
    }
}

struct Flash<'a> {
    found: &'a Attended,
    call: Attention<Extent>,
    /// Columns of the values.
    size: u64,
    exp: ScalarFn,
    shape: FlashTile,
    parts: KeySplits,
    /// Coordinates of the scores in the axes of queries and keys.
    coords: Vec<Index>,
}

/// One kernel, each block of which goes through all keys of its queries.
pub fn emit(cluster: &Cluster<'_>, found: &Attended, name: &str, math: Math<'_>) -> Result<Kernel> {
    let core = core(found, math);
    let flash = Flash::new(cluster, found, (core.shape(), KeySplits::one(&found.call, core.shape())), math)?;
    let mut e = Inliner::new(cluster, name, &found.space)?;
    flash.emit(&mut e, &*core)?;
    Ok(e.finish())
}

/// The first of two kernels, which leaves what the parts of the keys come to.
pub fn emit_parts(
    cluster: &Cluster<'_>,
    name: &str,
    math: Math<'_>,
    (found, parts): (&Attended, KeySplits),
) -> Result<Kernel> {
    let core = core(found, math);
    let flash = Flash::new(cluster, found, (core.shape(), parts), math)?;
    let results = [(DType::F32, flash.left(&found.fixed_call()).elements().into())];
    let mut e = Inliner::with_results(cluster, name, &found.space, &results)?;
    flash.emit(&mut e, &*core)?;
    Ok(e.finish())
}

/// The second, which puts that together.
pub fn emit_join(
    cluster: &Cluster<'_>,
    name: &str,
    math: Math<'_>,
    (found, parts): (&Attended, KeySplits),
) -> Result<Kernel> {
    let exp = exp(math)?;
    join::emit(found, parts.count(), name, &exp, cluster.ty(found.result)?.len())
}

/// The expansion of the exponential.
fn exp(math: Math<'_>) -> Result<ScalarFn> {
    let exp = ScalarFn::build(&[DType::F32], |_, a| vec![a[0].exp()]).map_err(internal)?;
    exp.expand_math(math.library).map_err(internal)
}

fn core(found: &Attended, math: Math<'_>) -> Box<dyn Core> {
    let (widths, shape) = ([found.call.depth, found.call.size].map(fixed), FlashTile::of(found, math.target));
    match uses_matrix_units(found, math.target) {
        false => Box::new(plain::Plain::new(widths, shape)),
        true => Box::new(units::Units::new(widths, found.dtype, shape)),
    }
}

impl<'a> Flash<'a> {
    fn new(
        cluster: &Cluster<'_>,
        found: &'a Attended,
        (shape, parts): (FlashTile, KeySplits),
        math: Math<'_>,
    ) -> Result<Flash<'a>> {
        let exp = exp(math)?;
        let position = linearize(&identity_map(found.space.len()), &found.space);
        let coords = delinearize(&position, &cluster.ty(found.scores)?.dims, &found.space);
        Ok(Flash { found, call: found.call, size: fixed(found.call.size), exp, shape, parts, coords })
    }

    fn emit(&self, e: &mut Inliner<'_>, core: &dyn Core) -> Result<()> {
        let call = &self.call;
        let (tiles, parts) = (call.queries.div_ceil(self.shape.queries), self.parts.count());
        let blocks = call.batch.iter().copied().product::<Extent>() * tiles * parts;
        launch(e, blocks, self.shape.threads, &core.arrays(), |e, b, thread, shared| {
            let limits = move |_: u32| (0, blocks - 1);
            let item = e.b.let_index("item", b.floor_div(tiles * parts, &limits));
            let first = b.floor_div(parts as i64, &limits).modulo(tiles, &limits);
            let first = e.b.let_index("first", first.scale(self.shape.queries as i64));
            let part = e.b.let_index("part", b.modulo(parts as i64, &limits));
            let batch = self.batch(e, &item);
            let block = BlockState {
                thread,
                shared,
                first,
                tiles: self.tiles(e, &part),
                part,
                q: self.matrix(e, self.found.q, &call.q, &batch, [call.queries, call.depth])?,
                // The rows of a tile are keys.
                k: self.matrix(e, self.found.k, &turned(&call.k), &batch, [call.keys, call.depth])?,
                v: self.matrix(e, self.found.v, &call.v, &batch, [call.keys, call.size])?,
            };
            self.block(e, core, &block, &batch)
        })
    }

    /// The first tile of a part of the keys, and the one behind its last.
    fn tiles(&self, e: &mut Inliner<'_>, part: &Index) -> [Index; 2] {
        let KeySplits { tiles, each } = self.parts;
        let all = Index::constant(tiles);
        if self.parts.count() == 1 {
            return [Index::default(), all];
        }
        let first = e.b.let_index("from", part.scale(each));
        let end = first.offset(each);
        let end = if tiles.sure_quotient(each).is_some() { end } else { end.minimum(&all, &unbounded) };
        [first, e.b.let_index("end", end)]
    }

    /// Where parts are left.
    fn left<'c>(&self, call: &'c Attention) -> Left<'c> {
        Left { call, parts: self.parts.count() }
    }

    /// The digits of a number of a product, and the axes they stand for.
    fn batch(&self, e: &mut Inliner<'_>, item: &Index) -> Vec<Index> {
        let call = &self.call;
        let from = |i: usize| call.batch[i..].iter().copied().product::<Extent>();
        let all = from(0);
        let limits = move |_: u32| (0, all - 1);
        let mut digits = vec![];
        for (i, (extent, axes)) in call.batch.iter().zip(&self.found.batch_axes).enumerate() {
            let digit = item.floor_div(from(i + 1).as_divisor(), &limits).modulo(extent.as_divisor(), &limits);
            let digit = e.b.let_index("batch", digit);
            set_groups(e, &self.groups(axes), &digit, *extent);
            digits.push(digit);
        }
        digits
    }

    fn groups(&self, axes: &[usize]) -> Vec<MergedAxes> {
        let group = |&axis: &usize| MergedAxes { axis, extent: self.found.space.at(axis) };
        axes.iter().map(group).filter(|g| !g.extent.is_surely(1)).collect()
    }

    fn matrix(
        &self,
        e: &mut Inliner<'_>,
        v: Value,
        layout: &MatrixLayout<Extent>,
        batch: &[Index],
        extents: [Extent; 2],
    ) -> Result<fetch::SourceMatrix> {
        let base = base(layout, batch);
        Ok(fetch::SourceMatrix {
            input: e.input(v.node)?,
            dtype: self.found.dtype,
            base: e.b.let_index("base", base),
            extents,
            strides: [layout.row_stride, layout.col_stride],
            offsets: [&[layout.offset], &layout.batch_strides[..]].concat(),
        })
    }

    fn block(&self, e: &mut Inliner<'_>, core: &dyn Core, block: &BlockState<'_>, batch: &[Index]) -> Result<()> {
        let own = core.own(e, &block.thread);
        let single = |x: f32| Operand::Const(Scalar::f32(x));
        let maxima = e.alloc("maxima", DType::F32, own.rows, Memory::Register);
        let totals = e.alloc("totals", DType::F32, own.rows, Memory::Register);
        e.looped("i", range(own.rows), LoopKind::Unroll, |e, i| {
            e.b.store(maxima, i.clone(), single(f32::NEG_INFINITY));
            e.b.store(totals, i.clone(), single(0.0));
            own.sums.each(e, &i, &mut |e, at, _| {
                e.b.store(own.sums.registers, at, single(0.0));
                Ok(())
            })
        })?;
        core.begin(e, block)?;
        let [first, end] = block.tiles.clone();
        e.looped("keys", (first, end, 1), LoopKind::Serial, |e, step| {
            core.scores(e, block, &own, &step)?;
            e.looped("i", range(own.rows), LoopKind::Unroll, |e, i| {
                self.row(e, block, &own, &i)?;
                let key = e.b.let_index("key", step.scale(self.shape.keys as i64));
                self.weigh(e, &own, &i, &key, (maxima, totals))
            })?;
            core.values(e, block, &own, &step)
        })?;
        self.results(e, block, &own, (maxima, totals), batch)
    }

    /// Sets the axes of queries to a row of the thread; those beyond the last are computed as the last.
    fn row(&self, e: &mut Inliner<'_>, block: &BlockState<'_>, own: &ThreadRows, row: &Index) -> Result<()> {
        let (queries, tile) = (self.call.queries, self.shape.queries);
        let mut query = block.first.add(&own.first).add(&row.scale(own.apart as i64));
        if queries.sure_quotient(tile).is_none() {
            query = query.minimum(&Index::constant(queries - 1), &unbounded);
        }
        let query = e.b.let_index("query", query);
        set_groups(e, &self.groups(&self.found.row_axes), &query, queries);
        Ok(())
    }

    /// Makes weights of the products in a row, and scales what was summed before.
    fn weigh(
        &self,
        e: &mut Inliner<'_>,
        own: &ThreadRows,
        row: &Index,
        key: &Index,
        (maxima, totals): (Buf, Buf),
    ) -> Result<()> {
        let scores = &own.scores;
        let single = |x: f32| Operand::Const(Scalar::f32(x));
        let top = e.alloc("top", DType::F32, 1, Memory::Register);
        let (zero, old) = (Index::default(), e.b.load(maxima, row.clone()));
        e.b.store(top, zero.clone(), old);
        scores.each(e, row, &mut |e, at, column| {
            let score = self.score(e, scores.registers, &at, &key.add(&column))?;
            e.b.store(scores.registers, at, score);
            let before = e.b.load(top, Index::default());
            let larger = e.b.op(ScalarOp::Max, &[before, score]);
            e.b.store(top, Index::default(), larger);
            Ok(())
        })?;
        let mut shift = single(0.0);
        if self.call.shifted {
            let mut largest = e.b.load(top, zero);
            for distance in own.lanes {
                let other = e.b.shuffle(largest, *distance);
                largest = e.b.op(ScalarOp::Max, &[largest, other]);
            }
            e.b.store(maxima, row.clone(), largest);
            // As long as all scores are -∞, so are weights 0.
            let none = e.b.op(ScalarOp::Cmp(CmpOp::Eq), &[largest, single(f32::NEG_INFINITY)]);
            shift = e.b.op(ScalarOp::Select, &[none, single(0.0), largest]);
            let grown = e.b.op(ScalarOp::Sub, &[old, shift]);
            let factor = e.b.apply(&self.exp, &[grown], &[])[0];
            let scale = |e: &mut Inliner<'_>, registers: Buf, at: Index| {
                let before = e.b.load(registers, at.clone());
                let scaled = e.b.op(ScalarOp::Mul, &[before, factor]);
                e.b.store(registers, at, scaled);
                Ok(())
            };
            scale(e, totals, row.clone())?;
            own.sums.each(e, row, &mut |e, at, _| scale(e, own.sums.registers, at))?;
        }
        scores.each(e, row, &mut |e, at, _| {
            let score = e.b.load(scores.registers, at.clone());
            let exponent = if self.call.shifted { e.b.op(ScalarOp::Sub, &[score, shift]) } else { score };
            let weight = e.b.apply(&self.exp, &[exponent], &[])[0];
            e.b.store(scores.registers, at, weight);
            let total = e.b.load(totals, row.clone());
            let total = e.b.op(ScalarOp::Add, &[total, weight]);
            e.b.store(totals, row.clone(), total);
            Ok(())
        })
    }

    /// The score that a product in a register becomes; -∞ beyond the last key.
    fn score(&self, e: &mut Inliner<'_>, registers: Buf, at: &Index, key: &Index) -> Result<Operand> {
        let (keys, cluster) = (self.call.keys, e.cluster);
        let mut product = e.b.load(registers, at.clone());
        let scale = Scalar::f32(f32::from_bits(self.call.scale));
        if scale.as_f32() != 1.0 {
            product = e.b.op(ScalarOp::Mul, &[product, Operand::Const(scale)]);
        }
        let dtype = cluster.ty(self.found.accumulated)?.dtype;
        if dtype != DType::F32 {
            product = e.b.op(ScalarOp::Cast(dtype), &[product]);
        }
        let partial = keys.sure_quotient(self.shape.keys).is_none();
        let key = e.b.let_index("key", key.clone());
        let last = Index::constant(keys - 1);
        let axis = self.found.space.len() - 1;
        e.set_axis(axis, if partial { key.minimum(&last, &unbounded) } else { key.clone() });
        e.bind(self.found.accumulated, Bound::Operand(product));
        let mut score = e.value(self.found.scores, &self.coords, None)?;
        if e.b.dtype(score) != DType::F32 {
            score = e.b.op(ScalarOp::Cast(DType::F32), &[score]);
        }
        if !partial {
            return Ok(score);
        }
        let [key, keys] = [key, Index::constant(keys)].map(|index| e.b.index_value(index));
        let inside = e.b.op(ScalarOp::Cmp(CmpOp::Lt), &[key, keys]);
        Ok(e.b.op(ScalarOp::Select, &[inside, score, Operand::Const(Scalar::f32(f32::NEG_INFINITY))]))
    }

    /// Divides by the sums of weights and stores, or leaves what a part of the keys comes to.
    fn results(
        &self,
        e: &mut Inliner<'_>,
        block: &BlockState<'_>,
        own: &ThreadRows,
        (maxima, totals): (Buf, Buf),
        batch: &[Index],
    ) -> Result<()> {
        let call = &self.call;
        let numbers = (self.parts.count() > 1).then(|| self.found.fixed_call());
        let left = numbers.as_ref().map(|numbers| self.left(numbers));
        let out = base(&call.out, batch);
        e.looped("i", range(own.rows), LoopKind::Unroll, |e, i| {
            let mut total = e.b.load(totals, i.clone());
            for distance in own.lanes {
                let other = e.b.shuffle(total, *distance);
                total = e.b.op(ScalarOp::Add, &[total, other]);
            }
            let query = e.b.let_index("query", block.first.add(&own.first).add(&i.scale(own.apart as i64)));
            let most = next_multiple(call.queries, self.shape.queries);
            if let Some(left) = &left {
                let row = e.b.let_index("line", left.row(batch, &query, &block.part));
                let top = e.b.load(maxima, i.clone());
                return below(e, &query, call.queries, most, |e| {
                    // One of the threads that share the row.
                    let first = e.b.index_value(own.sums.first.clone());
                    let first = e.b.op(ScalarOp::Cmp(CmpOp::Eq), &[first, Operand::Const(Scalar::i64(0))]);
                    e.when(first, |e| {
                        e.b.store(e.output(0), left.maximum(&row), top);
                        e.b.store(e.output(0), left.total(&row), total);
                        Ok(())
                    })?;
                    self.columns(e, own, &i, &mut |e, sum, column| {
                        e.b.store(e.output(0), left.sum(&row, &column), sum);
                        Ok(())
                    })
                });
            }
            let one = Operand::Const(Scalar::f32(1.0));
            let inverse = e.b.op(ScalarOp::Div, &[one, total]);
            let line = e.b.let_index("line", out.add(&query.scale(call.out.row_stride)));
            below(e, &query, call.queries, most, |e| {
                self.columns(e, own, &i, &mut |e, sum, column| {
                    let value = divided(&mut e.b, self.found, (sum, total, inverse));
                    e.b.store(e.output(0), line.add(&column), value);
                    Ok(())
                })
            })
        })
    }

    /// The body for every sum of a row that is one of the result's, and its column.
    fn columns(
        &self,
        e: &mut Inliner<'_>,
        own: &ThreadRows,
        row: &Index,
        body: &mut dyn FnMut(&mut Inliner<'_>, Operand, Index) -> Result<()>,
    ) -> Result<()> {
        let (size, sums) = (self.size, &own.sums);
        let most = sums.apart * sums.pieces;
        e.looped("j", range(sums.pieces), LoopKind::Unroll, |e, j| {
            let first = e.b.let_index("column", sums.column(&j));
            let mut one = |e: &mut Inliner<'_>, l: &Index| {
                let sum = e.b.load(sums.registers, sums.at(row, &j, l));
                body(e, sum, first.add(l))
            };
            match sums.width > 1 && size.is_multiple_of(sums.width) {
                true => below(e, &first, size, most, |e| {
                    e.looped("l", range(sums.width), LoopKind::Vector, |e, l| one(e, &l))
                }),
                false => e.looped("l", range(sums.width), LoopKind::Unroll, |e, l| {
                    below(e, &first.add(&l), size, most, |e| one(e, &l))
                }),
            }
        })
    }
}

/// What a sum becomes in the result, with the sum of weights and the inverse of that.
fn divided(b: &mut KernelBuilder, found: &Attended, (sum, total, inverse): (Operand, Operand, Operand)) -> Operand {
    let zero = Operand::Const(Scalar::f32(0.0));
    let mut value = b.op(ScalarOp::Mul, &[sum, inverse]);
    if found.call.empty_is_zero {
        let some = b.op(ScalarOp::Cmp(CmpOp::Gt), &[total, zero]);
        value = b.op(ScalarOp::Select, &[some, value, zero]);
    }
    if found.dtype != DType::F32 {
        value = b.op(ScalarOp::Cast(found.dtype), &[value]);
    }
    value
}

/// Where the matrix of a batch begins.
fn base(layout: &MatrixLayout<Extent>, batch: &[Index]) -> Index {
    let steps = batch.iter().zip(layout.batch_strides);
    steps.fold(Index::constant(layout.offset), |at, (b, stride)| at.add(&b.scale(stride)))
}

/// The layout of the transpose.
fn turned(layout: &MatrixLayout<Extent>) -> MatrixLayout<Extent> {
    MatrixLayout { row_stride: layout.col_stride, col_stride: layout.row_stride, ..*layout }
}
