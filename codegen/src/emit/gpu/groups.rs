//! Contractions of f16 and bf16, and of f32 that may be rounded to tf32, by groups of warps, for GPUs of compute capability 9.0a.
//!
//! One group of each block has the copy engine fetch tiles of both operands, some steps ahead; two others multiply them,
//! half of the rows each, and compute what follows where their sums are. Barriers tell which tiles are there and
//! which are free. There are no more blocks than run at once: each takes tiles of the result in turn, so that those of
//! the next one are fetched while what follows is computed. One operand may be computed instead, by the threads of the first
//! group, as long as the copy engine reads the other.

use tensorc_ir::DType;
use tensorc_ir::diag::Result;
use tensorc_ir::index::Index;
use tensorc_ir::kir::{
    Buf, BufferPlace, GROUP, GROUP_ROWS, GroupMma, Kernel, LoopKind, MemorySpace as Memory, Operand, Stmt, TensorMap,
    TileCopy, TileOperand, WARP, panel,
};
use tensorc_ir::scalar::{CmpOp, Scalar, ScalarOp};
use tensorc_schedule::access::product::MatrixProduct;
use tensorc_schedule::recipe::WarpGroups;
use tensorc_schedule::recipe::warp_groups::{COPY_ALIGNMENT, GROUPS, MatrixSource, OperandMatrix, ROWS};
use tensorc_schedule::target::Gpu;

use super::fixed;
use super::loops::set_groups;
use super::product::{operand_element, store_run};
use crate::emit::cluster::Cluster;
use crate::emit::inline::Inliner;

/// Groups that multiply, and one that fetches, with the registers of their threads.
const THREADS: u64 = (GROUPS + 1) * GROUP as u64;
const REGISTERS: (u32, u32) = (240, 24);
/// The same where the group that fetches also computes.
const COMPUTING: (u32, u32) = (216, 72);
/// Steps of which tiles are in shared memory.
const STAGES: u64 = 4;
/// Rows of tiles that go together, so that what blocks read at a time stays near.
const TILE_ROWS_TOGETHER: u64 = 16;
/// One operand.
#[derive(Clone, Debug)]
struct GroupOperand {
    from: From,
    /// Whether the rows of its tiles are rows of terms.
    along_terms: bool,
    /// Terms of a step: as many as a row of a panel has elements.
    depth: u64,
    /// Rows or columns of the result in a tile.
    length: u64,
    tiles: Buf,
}

/// Where the tiles of an operand come from.
#[derive(Clone, Debug)]
enum From {
    /// From a matrix as the copy engine sees it, in boxes of one panel, or of a whole tile if terms lie side by side; for each of
    /// its batch axes the position among those of the product.
    Matrix(TensorMap, Vec<usize>),
    /// From threads; whether neighbouring ones compute neighbouring terms, rather than rows or columns.
    Threads(bool),
}

impl GroupOperand {
    fn is_computed(&self) -> bool {
        matches!(self.from, From::Threads(_))
    }

    /// Elements of a tile.
    fn elements(&self) -> u64 {
        self.length * self.depth
    }

    /// Tiles from element `at` on as an operand of a product.
    fn operand(&self, at: Index) -> TileOperand {
        let panels = (!self.along_terms).then_some((self.depth * self.depth) as u32);
        TileOperand { at: BufferPlace::new(self.tiles, at), panels }
    }
}

struct GroupTiles<'a> {
    product: &'a MatrixProduct,
    sides: [GroupOperand; 2],
    dtype: DType,
    /// Terms of a step.
    depth: u64,
    /// Which tiles are there, and which are free.
    full: Buf,
    empty: Buf,
    /// Tiles of the result: of all batches, and down and across in one.
    batch: u64,
    down: u64,
    across: u64,
    steps: u64,
}

/// A tile of the result: the digits of its batch, its first row and column, and how many its block computed before.
struct At {
    batch: Vec<Index>,
    first: [Index; 2],
    turn: Index,
}

fn range(n: u64) -> (Index, Index, i64) {
    (Index::default(), Index::constant(n as i64), 1)
}

/// Emits a product with what surrounds it.
pub fn emit(cluster: &Cluster<'_>, plan: &WarpGroups, gpu: &Gpu, name: &str) -> Result<Kernel> {
    let mut e = Inliner::new(cluster, name, &plan.product.space.dims)?;
    write(&mut e, plan, gpu)?;
    Ok(e.finish())
}

fn write(e: &mut Inliner<'_>, plan: &WarpGroups, gpu: &Gpu) -> Result<()> {
    let WarpGroups { product, sources, columns } = plan;
    let columns = *columns;
    let [batch, rows, all, terms] = [product.batch(), product.rows(), product.columns(), product.terms()].map(fixed);
    let (down, across) = (rows.div_ceil(ROWS), all.div_ceil(columns));
    let lengths = [ROWS, columns];
    let dtype = e.cluster.ty(product.operands[0])?.dtype;
    let depth = panel(dtype) as u64;
    let mut from = vec![];
    for (i, source) in sources.iter().enumerate() {
        from.push(match source {
            MatrixSource::Computed { along_terms } => From::Threads(*along_terms),
            MatrixSource::Matrix(matrix) => {
                let buf = e.input(product.operands[i].node)?;
                let box_rows = if matrix.along_terms { lengths[i] } else { depth } as u32;
                let OperandMatrix { rows, columns, stride, .. } = *matrix;
                let (batch, positions) = matrix.batch.iter().copied().unzip();
                From::Matrix(TensorMap { buf, rows, columns, stride, box_rows, batch }, positions)
            }
        });
    }
    let computes = from.iter().any(|from| matches!(from, From::Threads(_)));
    let registers = if computes { COMPUTING } else { REGISTERS };
    let blocks = gpu.multiprocessors().min(batch * down * across);
    e.looped("b", range(blocks), LoopKind::Grid, |e, block| {
        let side = |e: &mut Inliner<'_>, i: usize| {
            let tiles = e.alloc("tiles", dtype, STAGES * lengths[i] * depth, Memory::Tile);
            let along_terms = matches!(
                &sources[i],
                MatrixSource::Computed { .. } | MatrixSource::Matrix(OperandMatrix { along_terms: true, .. })
            );
            GroupOperand { from: from[i].clone(), along_terms, depth, length: lengths[i], tiles }
        };
        let sides = [side(e, 0), side(e, 1)];
        let full = e.alloc("full", DType::I64, STAGES, Memory::Barrier);
        let empty = e.alloc("empty", DType::I64, STAGES, Memory::Barrier);
        let steps = terms.div_ceil(depth);
        let tiles = GroupTiles { product, sides, dtype, depth, full, empty, batch, down, across, steps };
        e.looped("t", range(THREADS), LoopKind::Threads, |e, thread| {
            let warps = |groups: u64| (groups * (GROUP / WARP) as u64) as u32;
            // One warp has the copy engine fetch, and all warps of the group compute.
            let arrivals = if computes { 1 + warps(1) } else { 1 };
            e.b.push(Stmt::InitBarriers { buf: full, arrivals });
            e.b.push(Stmt::InitBarriers { buf: empty, arrivals: warps(GROUPS) });
            e.b.push(Stmt::Barrier);
            e.b.open_block();
            tiles.in_turn(e, &block, blocks, |e, at| tiles.multiply(e, &thread, &at))?;
            let multiply = e.b.close_role((0, warps(GROUPS)), registers.0);
            e.b.open_block();
            tiles.fetcher(e, &thread, &block, blocks)?;
            let fetch = e.b.close_role((warps(GROUPS), warps(GROUPS + 1)), registers.1);
            e.b.push(Stmt::Roles(vec![multiply, fetch]));
            Ok(())
        })
    })
}

impl GroupTiles<'_> {
    /// The tiles of the result that a block computes.
    fn in_turn(
        &self,
        e: &mut Inliner<'_>,
        block: &Index,
        blocks: u64,
        body: impl FnOnce(&mut Inliner<'_>, At) -> Result<()>,
    ) -> Result<()> {
        let (each, tiles) = (self.down * self.across, self.batch * self.down * self.across);
        let range = (block.clone(), Index::constant(tiles as i64), blocks as i64);
        e.looped("item", range, LoopKind::Serial, |e, item| {
            let limits = move |_: u32| (0, tiles as i64 - 1);
            let batch = e.b.let_index("batch", item.floor_div(each as i64, &limits));
            let batch = set_groups(e, &self.product.axes.batch, &batch, self.batch.into());
            let turn = e.b.let_index("turn", item.floor_div(blocks as i64, &limits));
            let item = if self.batch == 1 { item } else { e.b.let_index("inner", item.modulo(each as i64, &limits)) };
            let limits = move |_: u32| (0, each as i64 - 1);
            let near = (1..=TILE_ROWS_TOGETHER).rev().find(|n| self.down.is_multiple_of(*n)).unwrap_or(1) as i64;
            let of_near = near * self.across as i64;
            let within = e.b.let_index("within", item.modulo(of_near, &limits));
            let inner = move |_: u32| (0, of_near - 1);
            let row = item.floor_div(of_near, &limits).scale(near).add(&within.modulo(near, &inner));
            let first = [
                e.b.let_index("rows", row.scale(ROWS as i64)),
                e.b.let_index("columns", within.floor_div(near, &inner).scale(self.sides[1].length as i64)),
            ];
            body(e, At { batch, first, turn })
        })
    }

    /// Where in shared memory the tiles of a step are, and how often others were there before.
    fn slot(&self, e: &mut Inliner<'_>, turn: &Index, step: &Index) -> [Index; 2] {
        let most = (self.batch * self.down * self.across * self.steps) as i64;
        let limits = move |_: u32| (0, most);
        let before = e.b.let_index("before", turn.scale(self.steps as i64).add(step));
        [
            e.b.let_index("slot", before.modulo(STAGES as i64, &limits)),
            e.b.let_index("lap", before.floor_div(STAGES as i64, &limits)),
        ]
    }

    /// The first warp of the group that fetches.
    fn fetcher(&self, e: &mut Inliner<'_>, thread: &Index, block: &Index, blocks: u64) -> Result<()> {
        let warp = e.b.let_index("warp", thread.floor_div(WARP as i64, &|_: u32| (0, THREADS as i64 - 1)));
        let first = Operand::Const(Scalar::i64((GROUPS * GROUP as u64) as i64 / WARP as i64));
        let warp = e.b.index_value(warp);
        let is_first = e.b.op(ScalarOp::Cmp(CmpOp::Eq), &[warp, first]);
        let computed = (0..2).find(|i| self.sides[*i].is_computed());
        let Some(computed) = computed else {
            return e.when(is_first, |e| {
                self.in_turn(e, block, blocks, |e, at| {
                    e.looped("k", range(self.steps), LoopKind::Serial, |e, k| {
                        let [slot, lap] = self.slot(e, &at.turn, &k);
                        self.copies(e, &at, &k, (&slot, &lap))
                    })
                })
            });
        };
        self.in_turn(e, block, blocks, |e, at| {
            e.looped("k", range(self.steps), LoopKind::Serial, |e, k| {
                let [slot, lap] = self.slot(e, &at.turn, &k);
                e.when(is_first, |e| self.copies(e, &at, &k, (&slot, &lap)))?;
                self.await_free(e, &slot, &lap);
                self.compute(e, computed, (thread, &at.first[computed]), (&k, &slot))?;
                e.b.push(Stmt::Arrive { barrier: BufferPlace::new(self.full, slot), bytes: 0 });
                Ok(())
            })
        })
    }

    fn await_free(&self, e: &mut Inliner<'_>, slot: &Index, lap: &Index) {
        e.b.push(Stmt::AwaitBarrier { barrier: BufferPlace::new(self.empty, slot.clone()), phase: lap.offset(-1) });
    }

    /// Has the copy engine fetch what it can for a step.
    fn copies(&self, e: &mut Inliner<'_>, at: &At, step: &Index, (slot, lap): (&Index, &Index)) -> Result<()> {
        self.await_free(e, slot, lap);
        let copied = self.sides.iter().filter(|side| !side.is_computed());
        let bytes = copied.map(GroupOperand::elements).sum::<u64>() as u32 * self.dtype.size() as u32;
        e.b.push(Stmt::Arrive { barrier: BufferPlace::new(self.full, slot.clone()), bytes });
        (0..2).try_for_each(|i| self.fetch(e, i, at, step, slot))
    }

    /// Computes the tile of an operand for a step by the threads of a group, a piece of 16 bytes after the other.
    fn compute(
        &self,
        e: &mut Inliner<'_>,
        operand: usize,
        (thread, first): (&Index, &Index),
        (step, slot): (&Index, &Index),
    ) -> Result<()> {
        let side = &self.sides[operand];
        let From::Threads(along) = side.from else { return Ok(()) };
        let piece = COPY_ALIGNMENT as u64 / self.dtype.size() as u64;
        let row = self.depth / piece;
        let pieces = side.length * row;
        let limits = move |_: u32| (0, pieces as i64 - 1);
        let own = e.b.let_index("own", thread.modulo(GROUP as i64, &|_: u32| (0, THREADS as i64 - 1)));
        let into = slot.scale(side.elements() as i64);
        e.looped("f", range(pieces / GROUP as u64), LoopKind::Serial, |e, f| {
            let i = e.b.let_index("f", f.scale(GROUP as i64).add(&own));
            let (line, part) = match along {
                true => (i.floor_div(row as i64, &limits), i.modulo(row as i64, &limits)),
                false => (i.modulo(side.length as i64, &limits), i.floor_div(side.length as i64, &limits)),
            };
            let (line, part) = (e.b.let_index("line", line), e.b.let_index("part", part));
            let position = e.b.let_index("m", first.add(&line));
            let term = e.b.let_index("n", step.scale(self.depth as i64).add(&part.scale(piece as i64)));
            let values = e.alloc("values", self.dtype, piece, Memory::Register);
            e.looped("l", range(piece), LoopKind::Unroll, |e, l| {
                let term = e.b.let_index("n", term.add(&l));
                let value = operand_element(e, self.product, operand, (&position, &term), [side.length, self.depth])?;
                let value = if self.dtype == DType::F32 { rounded(e, value) } else { value };
                e.b.store(values, l, value);
                Ok(())
            })?;
            let to = into.add(&line.scale(self.depth as i64)).add(&part.scale(piece as i64));
            e.looped("l", range(piece), LoopKind::Vector, |e, l| {
                let value = e.b.load(values, l.clone());
                e.b.store(side.tiles, to.add(&l), value);
                Ok(())
            })
        })
    }

    /// Begins to fetch the tile of an operand for a step, if the copy engine does.
    fn fetch(&self, e: &mut Inliner<'_>, side: usize, at: &At, step: &Index, slot: &Index) -> Result<()> {
        let (first, side) = (&at.first[side], &self.sides[side]);
        let From::Matrix(map, batch) = &side.from else { return Ok(()) };
        let (into, term) = (slot.scale(side.elements() as i64), step.scale(self.depth as i64));
        let copy = |into: Index, place: [Index; 2]| {
            let barrier = BufferPlace::new(self.full, slot.clone());
            Stmt::CopyTile(Box::new(TileCopy {
                into: BufferPlace::new(side.tiles, into),
                map: map.clone(),
                at: place,
                batch: batch.iter().map(|i| at.batch[*i].clone()).collect(),
                barrier,
            }))
        };
        if side.along_terms {
            e.b.push(copy(into, [first.clone(), term]));
            return Ok(());
        }
        // A panel has as many columns as a step has terms.
        e.looped("p", range(side.length / self.depth), LoopKind::Unroll, |e, p| {
            let panel = p.scale(self.depth as i64);
            e.b.push(copy(into.add(&panel.scale(self.depth as i64)), [term, first.add(&panel)]));
            Ok(())
        })
    }

    /// One tile of the result, by the groups that multiply. A product is begun before the one ahead is finished.
    fn multiply(&self, e: &mut Inliner<'_>, thread: &Index, at: &At) -> Result<()> {
        let turn = &at.turn;
        let columns = self.sides[1].length;
        let threads = |_: u32| (0, THREADS as i64 - 1);
        let group = e.b.let_index("group", thread.floor_div(GROUP as i64, &threads));
        let sums = e.alloc("sums", DType::F32, columns / 2, Memory::Register);
        e.looped("i", range(columns / 2), LoopKind::Unroll, |e, i| {
            e.b.store(sums, i, Operand::Const(Scalar::f32(0.0)));
            Ok(())
        })?;
        let product = |e: &mut Inliner<'_>, step: &Index| {
            let [slot, lap] = self.slot(e, turn, step);
            e.b.push(Stmt::AwaitBarrier { barrier: BufferPlace::new(self.full, slot.clone()), phase: lap });
            let half = group.scale((GROUP_ROWS as u64 * self.depth) as i64);
            let [a, b] = [0, 1].map(|i| slot.scale(self.sides[i].elements() as i64));
            let (a, b) = (self.sides[0].operand(a.add(&half)), self.sides[1].operand(b));
            let acc = BufferPlace::new(sums, Index::default());
            let mma = GroupMma { acc, a, b, columns: columns as u32, depth: self.depth as u32 };
            e.b.push(Stmt::GroupMma(Box::new(mma)));
        };
        let free = |e: &mut Inliner<'_>, step: &Index| {
            let [slot, _] = self.slot(e, turn, step);
            e.b.push(Stmt::Arrive { barrier: BufferPlace::new(self.empty, slot), bytes: 0 });
        };
        product(e, &Index::default());
        let rest = (Index::constant(1), Index::constant(self.steps as i64), 1);
        e.looped("k", rest, LoopKind::Serial, |e, k| {
            product(e, &k);
            e.b.push(Stmt::AwaitProducts { sums, pending: 1 });
            free(e, &k.offset(-1));
            Ok(())
        })?;
        e.b.push(Stmt::AwaitProducts { sums, pending: 0 });
        free(e, &Index::constant(self.steps as i64 - 1));
        self.results(e, thread, &group, &at.first, sums)
    }

    /// Stores what follows the contraction at every element of the thread's part of the result.
    fn results(&self, e: &mut Inliner<'_>, thread: &Index, group: &Index, first: &[Index; 2], sums: Buf) -> Result<()> {
        let columns = self.sides[1].length;
        let threads = |_: u32| (0, THREADS as i64 - 1);
        let (groups, lanes) = (|_: u32| (0, GROUP as i64 - 1), |_: u32| (0, WARP as i64 - 1));
        let own = e.b.let_index("own", thread.modulo(GROUP as i64, &threads));
        let lane = e.b.let_index("lane", thread.modulo(WARP as i64, &threads));
        let warp = own.floor_div(WARP as i64, &groups).scale(ROWS_OF_WARP);
        let row = first[0].add(&group.scale(GROUP_ROWS as i64)).add(&warp).add(&lane.floor_div(4, &lanes));
        let (row, pair) = (e.b.let_index("row", row), e.b.let_index("pair", lane.modulo(4, &lanes).scale(2)));
        e.looped("h", range(2), LoopKind::Unroll, |e, h| {
            let row = e.b.let_index("row", row.add(&h.scale(8)));
            e.looped("j", range(columns / 8), LoopKind::Unroll, |e, j| {
                let column = e.b.let_index("column", first[1].add(&pair).add(&j.scale(8)));
                let at = j.scale(4).add(&h.scale(2));
                store_run(e, self.product, (sums, &at), (&row, &column), [ROWS, columns], 2)
            })
        })
    }
}

/// An f32 as [`tf32`](tensorc_ir::kir::tf32) rounds it, but for NaNs, which stay.
fn rounded(e: &mut Inliner<'_>, value: Operand) -> Operand {
    let word = |x: u32| Operand::Const(Scalar::from_f64(DType::I32, f64::from(x as i32)));
    let bits = e.b.op(ScalarOp::Bitcast(DType::I32), &[value]);
    let last = e.b.op(ScalarOp::Shr, &[bits, word(13)]);
    let last = e.b.op(ScalarOp::And, &[last, word(1)]);
    let up = e.b.op(ScalarOp::Add, &[last, word(0xfff)]);
    let sum = e.b.op(ScalarOp::Add, &[bits, up]);
    let kept = e.b.op(ScalarOp::And, &[sum, word(0xffff_e000)]);
    let rounded = e.b.op(ScalarOp::Bitcast(DType::F32), &[kept]);
    let is_number = e.b.op(ScalarOp::Cmp(CmpOp::Eq), &[value, value]);
    e.b.op(ScalarOp::Select, &[is_number, rounded, value])
}

/// Rows of the sums of a group that one warp has.
const ROWS_OF_WARP: i64 = (GROUP_ROWS / (GROUP / WARP)) as i64;
