//! Training targets of anchors: which object each is to find, and where.

use tensorc_ir::kir::{Buf, Kernel, KernelBuilder, LoopKind, MemorySpace, Operand};
use tensorc_ir::scalar::{CmpOp, ScalarOp};

use super::boxes::overlap;
use crate::nest::{Scalars, int};
use crate::prelude::*;

const F32: DType = DType::F32;

pub fn ops() -> Vec<OpDef> {
    vec![multibox_target()]
}

fn real(x: f64) -> Operand {
    Operand::Const(Scalar::f32(x as f32))
}

type Done = Result<(), OpError>;

/// Extents and parameters.
struct TargetProblem {
    anchors: u64,
    labels: u64,
    width: u64,
    overlap: f64,
    ignore: f64,
    mining_ratio: f64,
    mining_overlap: f64,
    least_negative: i64,
    variances: [f64; 4],
}

/// Buffers. Scratch: overlaps, the state of each anchor (1 positive, 0 negative, -1 open), its object, the overlap
/// with it, and which objects have an anchor.
struct Targets {
    p: TargetProblem,
    anchor: Buf,
    label: Buf,
    background: Buf,
    offsets: Buf,
    mask: Buf,
    class: Buf,
    iou: Buf,
    state: Buf,
    object: Buf,
    best: Buf,
    taken: Buf,
}

/// A register of one value.
fn cell(k: &mut KernelBuilder, name: &str, value: Operand) -> Buf {
    let buf = k.alloc(name, k.dtype(value), 1, MemorySpace::Stack);
    k.store(buf, Index::default(), value);
    buf
}

fn read(k: &mut KernelBuilder, buf: Buf) -> Operand {
    k.load(buf, Index::default())
}

/// `buf = value` where the condition holds.
fn update(k: &mut KernelBuilder, buf: Buf, condition: Operand, value: Operand) {
    let old = read(k, buf);
    let new = k.select(condition, value, old);
    k.store(buf, Index::default(), new);
}

fn clamped(k: &KernelBuilder, x: Operand, n: u64) -> Index {
    let free = |_: u32| (i64::MIN / 8, i64::MAX / 8);
    k.as_index(x).maximum(&Index::default(), &free).minimum(&Index::constant(n.max(1) as i64 - 1), &free)
}

impl Targets {
    fn at(&self, image: &Index, anchor: &Index) -> Index {
        image.scale(self.p.anchors as i64).add(anchor)
    }

    fn label_at(&self, image: &Index, label: &Index, column: i64) -> Index {
        image.scale(self.p.labels as i64).add(label).scale(self.p.width as i64).offset(column)
    }

    fn corners(&self, k: &mut KernelBuilder, image: &Index, anchor: &Index, label: &Index) -> Vec<Operand> {
        let own = (0..4).map(|c| (self.anchor, anchor.scale(4).offset(c)));
        let object = (0..4).map(|c| (self.label, self.label_at(image, label, 1 + c)));
        own.chain(object).map(|(buf, at)| k.load(buf, at)).collect()
    }

    /// Number of objects: rows before the first of class -1.
    fn objects(&self, k: &mut KernelBuilder, image: &Index) -> Result<Operand, OpError> {
        let count = cell(k, "objects", int(0));
        let open = cell(k, "open", Operand::Const(Scalar::bool(true)));
        k.for_range("label", self.p.labels, LoopKind::Serial, |k, label| {
            let class = k.load(self.label, self.label_at(image, &label, 0));
            let real_one = k.cmp(CmpOp::Ne, class, real(-1.0));
            let before = read(k, open);
            let still = k.bin(ScalarOp::And, before, real_one);
            k.store(open, Index::default(), still);
            let old = read(k, count);
            let next = k.bin(ScalarOp::Add, old, int(1));
            update(k, count, still, next);
            k.store(self.taken, image.scale(self.p.labels as i64).add(&label), int(0));
            Ok::<(), OpError>(())
        })?;
        Ok(read(k, count))
    }

    /// All overlaps, and empty results.
    fn prepare(&self, k: &mut KernelBuilder, image: &Index) -> Done {
        let iou = ScalarFn::build(&[F32; 8], |_, a| vec![overlap(&a[..4], &a[4..])])?;
        k.for_range("anchor", self.p.anchors, LoopKind::Serial, |k, anchor| {
            let at = self.at(image, &anchor);
            for c in 0..4 {
                k.store(self.offsets, at.scale(4).offset(c), real(0.0));
                k.store(self.mask, at.scale(4).offset(c), real(0.0));
            }
            k.store(self.class, at.clone(), real(self.p.ignore));
            k.store(self.state, at.clone(), int(-1));
            k.store(self.object, at.clone(), int(-1));
            k.store(self.best, at.clone(), real(-1.0));
            k.for_range("label", self.p.labels, LoopKind::Serial, |k, label| {
                let pair = self.corners(k, image, &anchor, &label);
                let share = k.apply(&iou, &pair, &[])[0];
                k.store(self.iou, at.scale(self.p.labels as i64).add(&label), share);
                Ok::<(), OpError>(())
            })
        })
    }

    /// Every object gets the free anchor that overlaps it most, the best pair first. Returns how many did.
    fn pair_off(&self, k: &mut KernelBuilder, image: &Index, objects: Operand) -> Result<Operand, OpError> {
        let positive = cell(k, "positive", int(0));
        let going = cell(k, "going", Operand::Const(Scalar::bool(true)));
        let labels = self.p.labels;
        k.for_range("round", labels, LoopKind::Serial, |k, _| {
            let go = read(k, going);
            k.if_then(go, |k| {
                let top = cell(k, "top", real(1e-6));
                let (anchor_of, label_of) = (cell(k, "anchor_of", int(-1)), cell(k, "label_of", int(-1)));
                k.for_range("anchor", self.p.anchors, LoopKind::Serial, |k, anchor| {
                    let at = self.at(image, &anchor);
                    let state = k.load(self.state, at.clone());
                    let free = k.cmp(CmpOp::Ne, state, int(1));
                    k.if_then(free, |k| {
                        k.for_range("label", labels, LoopKind::Serial, |k, label| {
                            let number = k.index_value(label.clone());
                            let valid = k.cmp(CmpOp::Lt, number, objects);
                            let held = k.load(self.taken, image.scale(labels as i64).add(&label));
                            let open = k.cmp(CmpOp::Eq, held, int(0));
                            let share = k.load(self.iou, at.scale(labels as i64).add(&label));
                            let old = read(k, top);
                            let more = k.cmp(CmpOp::Gt, share, old);
                            let hit = k.bin(ScalarOp::And, valid, open);
                            let hit = k.bin(ScalarOp::And, hit, more);
                            update(k, top, hit, share);
                            let which = k.index_value(anchor.clone());
                            update(k, anchor_of, hit, which);
                            update(k, label_of, hit, number);
                            Ok::<(), OpError>(())
                        })
                    })
                })?;
                let found = read(k, anchor_of);
                let some = k.cmp(CmpOp::Ge, found, int(0));
                k.store(going, Index::default(), some);
                k.if_then(some, |k| {
                    let label = read(k, label_of);
                    let at = self.at(image, &clamped(k, found, self.p.anchors));
                    let share = read(k, top);
                    k.store(self.state, at.clone(), int(1));
                    k.store(self.object, at.clone(), label);
                    k.store(self.best, at, share);
                    let place = image.scale(labels as i64).add(&clamped(k, label, labels));
                    k.store(self.taken, place, int(1));
                    let old = read(k, positive);
                    let next = k.bin(ScalarOp::Add, old, int(1));
                    k.store(positive, Index::default(), next);
                    Ok::<(), OpError>(())
                })
            })
        })?;
        Ok(read(k, positive))
    }

    /// Other anchors take the object they overlap most; enough overlap makes them positive. Returns how many
    /// positive ones there are.
    fn extend(
        &self,
        k: &mut KernelBuilder,
        image: &Index,
        objects: Operand,
        positive: Operand,
    ) -> Result<Operand, OpError> {
        let count = cell(k, "count", positive);
        let labels = self.p.labels;
        k.for_range("anchor", self.p.anchors, LoopKind::Serial, |k, anchor| {
            let at = self.at(image, &anchor);
            let state = k.load(self.state, at.clone());
            let free = k.cmp(CmpOp::Ne, state, int(1));
            k.if_then(free, |k| {
                let (top, label_of) = (cell(k, "top", real(-1.0)), cell(k, "label_of", int(-1)));
                k.for_range("label", labels, LoopKind::Serial, |k, label| {
                    let number = k.index_value(label.clone());
                    let valid = k.cmp(CmpOp::Lt, number, objects);
                    let share = k.load(self.iou, at.scale(labels as i64).add(&label));
                    let old = read(k, top);
                    let more = k.cmp(CmpOp::Gt, share, old);
                    let hit = k.bin(ScalarOp::And, valid, more);
                    update(k, top, hit, share);
                    update(k, label_of, hit, number);
                    Ok::<(), OpError>(())
                })?;
                let (share, label) = (read(k, top), read(k, label_of));
                k.store(self.best, at.clone(), share);
                k.store(self.object, at.clone(), label);
                let enough = k.cmp(CmpOp::Gt, share, real(self.p.overlap));
                let usable = Operand::Const(Scalar::bool(self.p.overlap > 0.0));
                let enough = k.bin(ScalarOp::And, enough, usable);
                let state = k.select(enough, int(1), int(-1));
                k.store(self.state, at.clone(), state);
                let old = read(k, count);
                let next = k.bin(ScalarOp::Add, old, int(1));
                update(k, count, enough, next);
                Ok::<(), OpError>(())
            })
        })?;
        Ok(read(k, count))
    }

    /// Negative anchors: all others, or those of least background probability, a multiple of the positive ones.
    fn negatives(&self, k: &mut KernelBuilder, image: &Index, positive: Operand) -> Done {
        if self.p.mining_ratio <= 0.0 {
            return k.for_range("anchor", self.p.anchors, LoopKind::Serial, |k, anchor| {
                let at = self.at(image, &anchor);
                let state = k.load(self.state, at.clone());
                let open = k.cmp(CmpOp::Ne, state, int(1));
                let new = k.select(open, int(0), state);
                k.store(self.state, at, new);
                Ok::<(), OpError>(())
            });
        }
        let wanted = k.cast(positive, F32);
        let wanted = k.bin(ScalarOp::Mul, wanted, real(self.p.mining_ratio));
        let wanted = k.cast(wanted, DType::I64);
        let wanted = k.bin(ScalarOp::Max, wanted, int(self.p.least_negative));
        let rest = k.bin(ScalarOp::Sub, int(self.p.anchors as i64), positive);
        let wanted = k.bin(ScalarOp::Min, wanted, rest);
        let going = cell(k, "going", Operand::Const(Scalar::bool(true)));
        k.for_range("round", self.p.anchors, LoopKind::Serial, |k, round| {
            let number = k.index_value(round.clone());
            let more = k.cmp(CmpOp::Lt, number, wanted);
            let go = read(k, going);
            let go = k.bin(ScalarOp::And, go, more);
            k.if_then(go, |k| {
                let (least, found) = (cell(k, "least", real(f64::INFINITY)), cell(k, "found", int(-1)));
                k.for_range("anchor", self.p.anchors, LoopKind::Serial, |k, anchor| {
                    let at = self.at(image, &anchor);
                    let state = k.load(self.state, at.clone());
                    let open = k.cmp(CmpOp::Eq, state, int(-1));
                    let share = k.load(self.best, at.clone());
                    let far = k.cmp(CmpOp::Lt, share, real(self.p.mining_overlap));
                    let p = k.load(self.background, at);
                    let old = read(k, least);
                    let less = k.cmp(CmpOp::Lt, p, old);
                    let hit = k.bin(ScalarOp::And, open, far);
                    let hit = k.bin(ScalarOp::And, hit, less);
                    update(k, least, hit, p);
                    let which = k.index_value(anchor.clone());
                    update(k, found, hit, which);
                    Ok::<(), OpError>(())
                })?;
                let which = read(k, found);
                let some = k.cmp(CmpOp::Ge, which, int(0));
                k.store(going, Index::default(), some);
                k.if_then(some, |k| {
                    let at = self.at(image, &clamped(k, which, self.p.anchors));
                    k.store(self.state, at, int(0));
                    Ok::<(), OpError>(())
                })
            })
        })
    }

    /// Classes, offsets and masks of what was decided.
    fn write(&self, k: &mut KernelBuilder, image: &Index) -> Done {
        let v = self.p.variances;
        // The logarithm is computed in f64, as kernels have it.
        let encode = ScalarFn::build(&[F32; 8], |_, a| {
            let a: Vec<_> = a.iter().map(|x| x.cast(DType::F64)).collect();
            let size = |i: usize| &a[i + 2] - &a[i];
            let centre = |i: usize| (&a[i] + &a[i + 2]) * 0.5;
            let at = |axis: usize| (centre(4 + axis) - centre(axis)) / size(axis) / a[0].lit(v[axis]);
            let log = |axis: usize| (size(4 + axis) / size(axis)).log() / a[0].lit(v[axis + 2]);
            [at(0), at(1), log(0), log(1)].iter().map(|x| x.cast(F32)).collect()
        })?;
        k.for_range("anchor", self.p.anchors, LoopKind::Serial, |k, anchor| {
            let at = self.at(image, &anchor);
            let state = k.load(self.state, at.clone());
            let negative = k.cmp(CmpOp::Eq, state, int(0));
            k.if_then(negative, |k| {
                k.store(self.class, at.clone(), real(0.0));
                Ok::<(), OpError>(())
            })?;
            let positive = k.cmp(CmpOp::Eq, state, int(1));
            k.if_then(positive, |k| {
                let object = k.load(self.object, at.clone());
                let label = clamped(k, object, self.p.labels);
                let class = k.load(self.label, self.label_at(image, &label, 0));
                let class = k.bin(ScalarOp::Add, class, real(1.0));
                k.store(self.class, at.clone(), class);
                let pair = self.corners(k, image, &anchor, &label);
                for (c, value) in k.apply(&encode, &pair, &[]).into_iter().enumerate() {
                    k.store(self.offsets, at.scale(4).offset(c as i64), value);
                    k.store(self.mask, at.scale(4).offset(c as i64), real(1.0));
                }
                Ok::<(), OpError>(())
            })
        })
    }
}

fn problem(params: &Params, anchors: u64, labels: &[u64]) -> TargetProblem {
    let get = |name: &str, default: f64| params.float(name).unwrap_or(default);
    let given = params.floats("variances").unwrap_or_default();
    TargetProblem {
        anchors,
        labels: labels[1],
        width: labels[2],
        overlap: get("overlap_threshold", 0.5),
        ignore: get("ignore_label", -1.0),
        mining_ratio: get("negative_mining_ratio", -1.0),
        mining_overlap: get("negative_mining_thresh", 0.5),
        least_negative: params.int("minimum_negative_samples").unwrap_or(0),
        variances: [0, 1, 2, 3].map(|i| given.get(i).copied().unwrap_or(if i < 2 { 0.1 } else { 0.2 })),
    }
}

/// Types: anchors, labels, background probabilities; then the results and the scratch.
fn kernel(p: TargetProblem, images: u64, inputs: &[DenseType], results: &[DenseType]) -> Result<Kernel, OpError> {
    let mut k = KernelBuilder::new("multibox_target");
    let names = ["anchor", "label", "background"];
    let ins: Vec<Buf> = names.iter().zip(inputs).map(|(n, t)| k.param(*n, t.dtype, t.len(), false)).collect();
    let names = ["offsets", "mask", "class", "iou", "state", "object", "best", "taken"];
    let outs: Vec<Buf> = names.iter().zip(results).map(|(n, t)| k.param(*n, t.dtype, t.len(), true)).collect();
    let t = Targets {
        p,
        anchor: ins[0],
        label: ins[1],
        background: ins[2],
        offsets: outs[0],
        mask: outs[1],
        class: outs[2],
        iou: outs[3],
        state: outs[4],
        object: outs[5],
        best: outs[6],
        taken: outs[7],
    };
    k.for_range("image", images, LoopKind::Parallel, |k, image| {
        let objects = t.objects(k, &image)?;
        t.prepare(k, &image)?;
        // An image without objects decides nothing.
        let some = k.cmp(CmpOp::Gt, objects, int(0));
        k.if_then(some, |k| {
            let positive = t.pair_off(k, &image, objects)?;
            let positive = t.extend(k, &image, objects, positive)?;
            t.negatives(k, &image, positive)?;
            t.write(k, &image)
        })
    })?;
    Ok(k.finish())
}

fn multibox_target() -> OpDef {
    let compute = Compute::Composite(Box::new(|b, cx, args| {
        let (anchor, label, scores) = (operand(b, args, 0)?, operand(b, args, 1)?, operand(b, args, 2)?);
        let [anchor, label, scores] = [cast(b, anchor, F32)?, cast(b, label, F32)?, cast(b, scores, F32)?];
        let (labels, d) = (b.dims(label)?, b.dims(scores)?);
        let (images, n) = (d[0], d[2]);
        let shares = b.op("softmax", &[scores], Params::new().with("axis", ParamValue::Int(1)))?;
        let background = b.slice_axis(shares, 1, 0, 1)?;
        let background = b.reshaped(background, &[images, n])?;
        let f = |dims: &[u64]| DenseType::new(F32, dims);
        let i = |dims: &[u64]| DenseType::new(DType::I64, dims);
        let each = [images, n];
        let results = [
            f(&[images, 4 * n]),
            f(&[images, 4 * n]),
            f(&each),
            f(&[images, n, labels[1]]),
            i(&each),
            i(&each),
            f(&each),
            i(&[images, labels[1]]),
        ];
        let inputs = [b.ty(anchor)?, b.ty(label)?, b.ty(background)?];
        let kernel = kernel(problem(cx.params, n, &labels), images, &inputs, &results).or_fail(b)?;
        let made = b.kernel(kernel, &[anchor, label, background], &results);
        let ty = cx.outputs[0].dtype;
        (0..3).map(|i| cast(b, made[i], ty)).collect()
    }));
    let infer = rule(|cx| {
        (0..3).try_for_each(|i| cx.same_dtype(i, 0))?;
        let Some(scores) = rank_in(cx, 2, 3..=3)? else { return Ok(()) };
        shaped(cx, 0, &[Dim::Const(1), scores[2], Dim::Const(4)])?;
        if let Some(label) = rank_in(cx, 1, 3..=3)? {
            shaped(cx, 1, &[scores[0], label[1], label[2]])?;
            if label[2].as_const().is_some_and(|n| n < 5) {
                return Err("operand `label`, axis 2: expected a class and a box, 5 numbers".into());
            }
        }
        let Dim::Const(n) = scores[2] else { return Ok(()) };
        cx.set_output_dims(0, [scores[0], Dim::Const(4 * n)])?;
        cx.set_output_dims(1, [scores[0], Dim::Const(4 * n)])?;
        cx.set_output_dims(2, [scores[0], scores[2]])
    });
    let doc = "Offsets, their mask and classes that anchors are to predict, given labels (class, x1, y1, x2, y2; class -1 \
               ends an image's). Class 0 is the background.";
    define("mx_multibox_target", doc, compute, infer)
        .group("anchor", FLOATS)
        .group("label", FLOATS)
        .group("cls_pred", FLOATS)
        .param("overlap_threshold", ParamValue::Float(0.5), "overlap above which an anchor is positive")
        .param("ignore_label", ParamValue::Float(-1.0), "class of anchors that do not count")
        .param("negative_mining_ratio", ParamValue::Float(-1.0), "negative anchors by positive one; negative: all")
        .param("negative_mining_thresh", ParamValue::Float(0.5), "overlap below which an anchor may be negative")
        .param("minimum_negative_samples", ParamValue::Int(0), "least number of negative anchors")
        .param("variances", ParamValue::Floats(vec![0.1, 0.1, 0.2, 0.2]), "divisors of the offsets")
        .outputs(3, 3)
        .no_gradient()
        .ulp(64.0)
        .mxnet("_contrib_MultiBoxTarget")
}
