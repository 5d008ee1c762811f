//! Contractions as tiled matrix products: rows are the axes that only the left operand has, columns those that only the
//! right one has. Convolutions are products of a matrix of image patches that is never in memory.
//!
//! A block computes one tile of the result. Its threads fetch tiles of both operands into shared memory, whatever computes
//! their elements, and each multiplies a small tile in registers. What follows the contraction is computed where the
//! sums are. Terms are added in the order of the folded axes.

use tensorc_ir::DType;
use tensorc_ir::diag::Result;
use tensorc_ir::graph::Value;
use tensorc_ir::index::Index;
use tensorc_ir::kir::{Buf, Kernel, LoopKind, Operand, Place, Space as Memory, Stmt};
use tensorc_ir::prim::{Contraction, Prim};
use tensorc_ir::scalar::{Scalar, ScalarOp};
use tensorc_ir::views::strides_in_result;
use tensorc_schedule::access::space::Space;
use tensorc_schedule::access::{Group, Uses, group_axes};
use tensorc_schedule::target::Gpu;

use super::loops::{below, inside, launch, range, set_groups};
use super::tiles::{self, PAD, SIDE, Side};
use super::{groups, matrix};
use crate::emit::cluster::Cluster;
use crate::emit::fold::{Fold, accumulator};
use crate::emit::inline::{Bound, Inliner};

const THREADS: u64 = SIDE * SIDE;
/// Results for each batch from which on tiles are worth their loads.
const SMALLEST: u64 = 64;

/// Axes by the operands that have them.
#[derive(Clone, Debug)]
pub(super) struct Axes {
    pub batch: Vec<Group>,
    pub rows: Vec<Group>,
    pub columns: Vec<Group>,
    pub terms: Vec<Group>,
}

/// The size of a tile: rows, columns, terms at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tile {
    rows: u64,
    columns: u64,
    terms: u64,
}

pub(super) fn total(groups: &[Group]) -> u64 {
    groups.iter().map(|g| g.extent).product()
}

/// A kernel for a contraction with what surrounds it, by groups of warps where the GPU has them; `None` if it is too small for tiles.
pub fn emit(cluster: &Cluster<'_>, space: &Space, name: &str, gpu: &Gpu) -> Result<Option<Kernel>> {
    let folds = Fold::all(cluster)?;
    let [Fold::Contract(node, c, _)] = &folds[..] else { return Ok(None) };
    let mut uses = Uses::default();
    uses.collect_fold(cluster, *node, space, &|_| false)?;
    let stored = stored(cluster, space, c)?;
    for s in &stored {
        uses.collect(cluster, s.value, &s.coords, &space.dims, &|v| v.node == *node)?;
        uses.store(s.value, s.address.clone());
    }
    let axes = classify(c, space, &uses);
    let (rows, columns, terms) = (total(&axes.rows), total(&axes.columns), total(&axes.terms));
    let moved = stored.iter().zip(cluster.outputs()).any(|(s, v)| s.value != v);
    if terms == 0 || rows * columns < SMALLEST && !moved {
        return Ok(None);
    }
    let args = cluster.body.args(*node);
    let mut product = Product {
        space,
        contraction: c,
        value: Value { node: *node, port: 0 },
        operands: [args[0], args[1]],
        tile: tile(rows, columns, total(&axes.batch)),
        axes,
        stored,
    };
    let mut e = Inliner::new(cluster, name, &space.dims)?;
    if gpu.has_warp_groups() {
        let axes = groups::axes(&product.axes);
        let own = std::mem::replace(&mut product.axes, axes);
        if let Some(sources) = groups::sources(cluster, &product, &uses)? {
            groups::emit(&mut e, &product, sources, gpu)?;
            return Ok(Some(e.finish()));
        }
        product.axes = own;
    }
    match matrix::multiplies(cluster, &product)? {
        true => matrix::emit(&mut e, &product, &uses)?,
        false => product.emit(&mut e, &uses)?,
    }
    Ok(Some(e.finish()))
}

/// A value that is stored at every element of the contraction.
struct Stored {
    output: usize,
    value: Value,
    /// Its coordinates, and its position in memory, in the axes of the space.
    coords: Vec<Index>,
    address: Index,
}

/// What is stored. A last view that permutes says where, rather than what.
fn stored(cluster: &Cluster<'_>, space: &Space, c: &Contraction) -> Result<Vec<Stored>> {
    let dims = &c.extents[..c.out_rank];
    let one = |(output, v): (usize, Value)| {
        let ty = cluster.ty(v)?;
        if let Some(Prim::View(view)) = cluster.prim(v.node)
            && let Some(strides) = strides_in_result(view, dims, &ty.dims)
        {
            let step = |(axis, stride): (usize, &i64)| Index::var(axis as u32).scale(*stride);
            let position = strides.iter().enumerate().map(step).fold(Index::default(), |sum, term| sum.add(&term));
            let address = match cluster.output_runs(output) {
                Some(runs) => {
                    let (run, stride) = (runs.run as i64, runs.stride as i64);
                    let outer = position.floor_div(run, &space.dims[..]).scale(stride);
                    outer.add(&position.modulo(run, &space.dims[..]))
                }
                None => position,
            };
            let value = cluster.body.args(v.node)[0];
            return Ok(Stored { output, value, coords: space.coords_of(dims)?, address });
        }
        let coords = space.coords_of(&ty.dims)?;
        Ok(Stored { output, value: v, address: cluster.output_address(output, &ty.dims, &coords), coords })
    };
    cluster.outputs().into_iter().enumerate().map(one).collect()
}

fn classify(c: &Contraction, space: &Space, uses: &Uses) -> Axes {
    let mentions = |operand: &[Index], a: usize| operand.iter().any(|i| i.mentions(a as u32));
    let class = |a: usize| match (space.is_reduced(a), mentions(&c.lhs, a), mentions(&c.rhs, a)) {
        (true, ..) => 3,
        (_, true, false) => 1,
        (_, false, true) => 2,
        _ => 0,
    };
    let groups = group_axes(&space.dims, uses, &|a, b| class(a) == class(b));
    let of = |wanted: usize| groups.iter().filter(|g| class(g.axis) == wanted).cloned().collect();
    Axes { batch: of(0), rows: of(1), columns: of(2), terms: of(3) }
}

/// Large tiles where there are enough of them to keep a GPU busy.
fn tile(rows: u64, columns: u64, batch: u64) -> Tile {
    const BUSY: u64 = 128;
    let tiles = |side: u64| rows.div_ceil(side) * columns.div_ceil(side) * batch;
    let most = if tiles(128) >= BUSY { 128 } else { 64 };
    let fit = |n: u64| [16, 32, 64, 128].into_iter().find(|side| *side >= n || *side == most).unwrap_or(most);
    let (rows, columns) = (fit(rows), fit(columns));
    Tile { rows, columns, terms: if rows.max(columns) == 128 { 8 } else { 16 } }
}

/// A contraction as a product of matrices.
pub(super) struct Product<'a> {
    pub space: &'a Space,
    pub contraction: &'a Contraction,
    value: Value,
    pub operands: [Value; 2],
    pub axes: Axes,
    tile: Tile,
    stored: Vec<Stored>,
}

/// The places of a thread and its block.
struct Own {
    /// First row and column of the tile.
    rows: Index,
    columns: Index,
    /// The thread's row and column of threads.
    y: Index,
    x: Index,
}

impl Product<'_> {
    fn emit(&self, e: &mut Inliner<'_>, uses: &Uses) -> Result<()> {
        let t = self.tile;
        let (rows, columns) = (total(&self.axes.rows), total(&self.axes.columns));
        let (down, across) = (rows.div_ceil(t.rows), columns.div_ceil(t.columns));
        let batch = total(&self.axes.batch);
        let dtype = |e: &Inliner<'_>, i: usize| e.cluster.ty(self.operands[i]).map(|ty| ty.dtype);
        let arrays = [(dtype(e, 0)?, t.terms * (t.rows + PAD)), (dtype(e, 1)?, t.terms * (t.columns + PAD))];
        let blocks = batch * down * across;
        launch(e, blocks, THREADS, &arrays, |e, b, thread, shared| {
            let limits = move |_: u32| (0, blocks as i64 - 1);
            let threads = |_: u32| (0, THREADS as i64 - 1);
            let item = e.b.let_index("item", b.floor_div((down * across) as i64, &limits));
            set_groups(e, &self.axes.batch, &item, batch);
            let row = b.floor_div(across as i64, &limits).modulo(down as i64, &limits);
            let column = b.modulo(across as i64, &limits);
            let own = Own {
                rows: e.b.let_index("rows", row.scale(t.rows as i64)),
                columns: e.b.let_index("columns", column.scale(t.columns as i64)),
                y: e.b.let_index("y", thread.floor_div(SIDE as i64, &threads)),
                x: e.b.let_index("x", thread.modulo(SIDE as i64, &threads)),
            };
            let sums = self.sums(e, &thread, &own, shared, uses)?;
            self.results(e, &own, sums)
        })
    }

    /// The type of sums.
    fn wide(&self, e: &Inliner<'_>) -> Result<DType> {
        Ok(accumulator(e.cluster.ty(self.value)?.dtype))
    }

    /// The sums of a thread, in registers: row by row of its small tile.
    fn sums(&self, e: &mut Inliner<'_>, thread: &Index, own: &Own, shared: &[Buf], uses: &Uses) -> Result<Buf> {
        let (t, wide) = (self.tile, self.wide(e)?);
        let (down, across) = (Side::of(t.rows), Side::of(t.columns));
        let count = down.own() * across.own();
        let sums = e.alloc("sums", wide, count, Memory::Register);
        e.looped("i", range(count), LoopKind::Unroll, |e, i| {
            e.b.store(sums, i, Operand::Const(Scalar::zero(wide)));
            Ok(())
        })?;
        let terms = total(&self.axes.terms);
        let range_of_terms = (Index::default(), Index::constant(terms as i64), t.terms as i64);
        e.looped("k", range_of_terms, LoopKind::Serial, |e, k| {
            self.fetch(e, 0, thread, (&own.rows, &k), shared[0], uses)?;
            self.fetch(e, 1, thread, (&own.columns, &k), shared[1], uses)?;
            e.b.push(Stmt::Barrier);
            let operand =
                |i: usize, side, thread| tiles::Operand { from: Place::new(shared[i], Index::default()), side, thread };
            let operands = [&operand(0, down, &own.y), &operand(1, across, &own.x)];
            tiles::multiply(e, operands, t.terms, (sums, wide))?;
            e.b.push(Stmt::Barrier);
            Ok(())
        })?;
        Ok(sums)
    }

    /// Fetches a tile of an operand into shared memory: `terms` rows of the tile's length, zeros where there is nothing.
    fn fetch(
        &self,
        e: &mut Inliner<'_>,
        operand: usize,
        thread: &Index,
        (first, k): (&Index, &Index),
        shared: Buf,
        uses: &Uses,
    ) -> Result<()> {
        let (groups, length) = match operand {
            0 => (&self.axes.rows, self.tile.rows),
            _ => (&self.axes.columns, self.tile.columns),
        };
        let depth = self.tile.terms;
        let along_terms = self.contiguous(e.cluster, operand, uses, groups);
        let each = (length * depth).div_ceil(THREADS);
        e.looped("f", (Index::default(), Index::constant(each as i64), 1), LoopKind::Unroll, |e, f| {
            let limits = |_: u32| (0, (length * depth) as i64 - 1);
            let i = e.b.let_index("f", f.scale(THREADS as i64).add(thread));
            let (at, term) = match along_terms {
                true => (i.floor_div(depth as i64, &limits), i.modulo(depth as i64, &limits)),
                false => (i.modulo(length as i64, &limits), i.floor_div(length as i64, &limits)),
            };
            let (at, term) = (e.b.let_index("at", at), e.b.let_index("term", term));
            below(e, &i, length * depth, each * THREADS, |e| {
                let position = e.b.let_index("m", first.add(&at));
                let place = e.b.let_index("n", k.add(&term));
                let value = self.element(e, operand, (&position, &place), [length, depth])?;
                e.b.store(shared, term.scale((length + PAD) as i64).add(&at), value);
                Ok(())
            })
        })
    }

    /// The element of an operand in a row or column and of a term, zero beyond the last ones, which tiles of the given length and
    /// terms may reach.
    pub fn element(
        &self,
        e: &mut Inliner<'_>,
        operand: usize,
        (position, term): (&Index, &Index),
        [length, depth]: [u64; 2],
    ) -> Result<Operand> {
        let (groups, index) = match operand {
            0 => (&self.axes.rows, &self.contraction.lhs),
            _ => (&self.axes.columns, &self.contraction.rhs),
        };
        let (extent, terms) = (total(groups), total(&self.axes.terms));
        let inside = inside(e, &[(position, extent, length), (term, terms, depth)]);
        set_groups(e, groups, position, extent);
        set_groups(e, &self.axes.terms, term, terms);
        let ty = e.cluster.ty(self.operands[operand])?;
        let guard = e.guard(index, &ty.dims, inside);
        let value = e.value(self.operands[operand], index, guard)?;
        let zero = Operand::Const(Scalar::zero(ty.dtype));
        Ok(match guard {
            Some(cond) => e.b.op(ScalarOp::Select, &[cond, value, zero]),
            None => value,
        })
    }

    /// Whether neighbouring terms of an operand lie side by side, rather than neighbouring rows or columns.
    pub fn contiguous(&self, cluster: &Cluster<'_>, operand: usize, uses: &Uses, groups: &[Group]) -> bool {
        let unit = |g: Option<&Group>| {
            let axis = g.map(|g| g.axis as u32);
            let reads = |v: Value| cluster.body.args(self.value.node)[operand] == v;
            axis.is_some_and(|a| uses.flats.iter().any(|(v, f)| reads(*v) && f.coefficient(a) == Some(1)))
        };
        unit(self.axes.terms.last()) && !unit(groups.last())
    }

    /// Stores what follows the contraction at every element of the thread's tile.
    fn results(&self, e: &mut Inliner<'_>, own: &Own, sums: Buf) -> Result<()> {
        let (down, across) = (Side::of(self.tile.rows), Side::of(self.tile.columns));
        e.looped("i", range(down.own()), LoopKind::Unroll, |e, i| {
            let limits = |_: u32| (0, down.own() as i64 - 1);
            let part = i.floor_div(down.width as i64, &limits);
            let within = i.modulo(down.width as i64, &limits);
            let row = e.b.let_index("row", own.rows.add(&down.first(&part, &own.y)).add(&within));
            e.looped("part", range(across.parts), LoopKind::Unroll, |e, part| {
                let column = e.b.let_index("column", own.columns.add(&across.first(&part, &own.x)));
                let at = i.scale(across.own() as i64).add(&part.scale(across.width as i64));
                let tile = [self.tile.rows, self.tile.columns];
                self.store_run(e, (sums, &at), (&row, &column), tile, across.width)
            })
        })
    }

    /// Stores what follows the contraction at `width` neighbours of a row, whose sums are in registers from `at` on; those
    /// beyond the result, which a tile of the given size may reach, are left out.
    pub fn store_run(
        &self,
        e: &mut Inliner<'_>,
        (sums, at): (Buf, &Index),
        (row, column): (&Index, &Index),
        tile: [u64; 2],
        width: u64,
    ) -> Result<()> {
        let (rows, columns) = (total(&self.axes.rows), total(&self.axes.columns));
        let range = (Index::default(), Index::constant(width as i64), 1);
        let most = columns.next_multiple_of(tile[1]);
        below(e, row, rows, rows.next_multiple_of(tile[0]), |e| {
            set_groups(e, &self.axes.rows, row, rows);
            if width > 1 && columns.is_multiple_of(width) {
                return below(e, column, columns, most, |e| {
                    e.looped("l", range, LoopKind::Vector, |e, l| {
                        self.store_one(e, (sums, at.add(&l)), &column.add(&l))
                    })
                });
            }
            e.looped("l", range, LoopKind::Unroll, |e, l| {
                let column = e.b.let_index("column", column.add(&l));
                below(e, &column, columns, most, |e| self.store_one(e, (sums, at.add(&l)), &column))
            })
        })
    }

    fn store_one(&self, e: &mut Inliner<'_>, (sums, at): (Buf, Index), column: &Index) -> Result<()> {
        let dtype = e.cluster.ty(self.value)?.dtype;
        set_groups(e, &self.axes.columns, column, total(&self.axes.columns));
        let sum = e.b.load(sums, at);
        let sum = if e.b.dtype(sum) == dtype { sum } else { e.b.op(ScalarOp::Cast(dtype), &[sum]) };
        e.bind(self.value, Bound::Operand(sum));
        let values = self.stored.iter().map(|s| e.value(s.value, &s.coords, None)).collect::<Result<Vec<_>>>()?;
        for (s, value) in self.stored.iter().zip(values) {
            let at = e.kernel_index(&s.address);
            e.b.store(e.output(s.output), at, value);
        }
        Ok(())
    }
}
