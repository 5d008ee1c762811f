//! Training targets of anchors: which object each is to find, and where.

use super::boxes::{overlap, variances};
use crate::prelude::*;

const F32: DType = DType::F32;

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

/// Tensors. Scratch: overlaps, the state of each anchor (1 positive, 0 negative, -1 open), its object, the overlap
/// with it, and which objects have an anchor.
struct Targets<'k> {
    k: &'k KernelScope,
    p: TargetProblem,
    anchor: KernelTensor<'k>,
    label: KernelTensor<'k>,
    background: KernelTensor<'k>,
    offsets: KernelTensor<'k>,
    mask: KernelTensor<'k>,
    class: KernelTensor<'k>,
    iou: KernelTensor<'k>,
    state: KernelTensor<'k>,
    object: KernelTensor<'k>,
    best: KernelTensor<'k>,
    taken: KernelTensor<'k>,
}

impl<'k> Targets<'k> {
    fn at(&self, image: &Index, anchor: &Index) -> Index {
        image.scale(self.p.anchors as i64).add(anchor)
    }

    fn label_at(&self, image: &Index, label: &Index, column: i64) -> Index {
        image.scale(self.p.labels as i64).add(label).scale(self.p.width as i64).offset(column)
    }

    fn corners(&self, image: &Index, anchor: &Index, label: &Index) -> Vec<KernelValue<'k>> {
        let own = (0..4).map(|c| self.anchor.get(&anchor.scale(4).offset(c)));
        let object = (0..4).map(|c| self.label.get(&self.label_at(image, label, 1 + c)));
        own.chain(object).collect()
    }

    fn each_anchor(&self, image: &Index, body: impl FnOnce(&Index, &Index)) {
        self.k.each("anchor", self.p.anchors, |anchor| body(anchor, &self.at(image, anchor)));
    }

    /// Number of objects: rows before the first of class -1.
    fn objects(&self, image: &Index) -> KernelValue<'k> {
        let k = self.k;
        let count = k.cell("objects", DType::I64).holding(0);
        let open = k.cell("open", DType::Bool).holding(true);
        k.each("label", self.p.labels, |label| {
            let real = self.label.get(&self.label_at(image, label, 0)).ne(-1.0);
            let still = open.get() & real;
            open.set(still);
            let next = count.get() + 1;
            count.update(still, next);
            self.taken.set([image, label], 0);
        });
        count.get()
    }

    /// All overlaps, and empty results.
    fn prepare(&self, image: &Index) {
        self.each_anchor(image, |anchor, at| {
            for c in 0..4 {
                self.offsets.set(&at.scale(4).offset(c), 0.0);
                self.mask.set(&at.scale(4).offset(c), 0.0);
            }
            self.class.set(at, self.p.ignore);
            self.state.set(at, -1);
            self.object.set(at, -1);
            self.best.set(at, -1.0);
            self.k.each("label", self.p.labels, |label| {
                let [share] = self.k.eval(&self.corners(image, anchor, label), |a| [overlap(&a[..4], &a[4..])]);
                self.iou.set([image, anchor, label], share);
            });
        });
    }

    /// Every object gets the free anchor that overlaps it most, the best pair first. Returns how many did.
    fn pair_off(&self, image: &Index, objects: KernelValue<'k>) -> KernelValue<'k> {
        let (k, labels) = (self.k, self.p.labels);
        let positive = k.cell("positive", DType::I64).holding(0);
        let going = k.cell("going", DType::Bool).holding(true);
        k.each("round", labels, |_| {
            k.when(going.get(), || {
                let top = k.cell("top", F32).holding(1e-6);
                let anchor_of = k.cell("anchor_of", DType::I64).holding(-1);
                let label_of = k.cell("label_of", DType::I64).holding(-1);
                self.each_anchor(image, |anchor, at| {
                    k.when(self.state.get(at).ne(1), || {
                        k.each("label", labels, |label| {
                            let valid = k.position(label).lt(objects);
                            let open = self.taken.get([image, label]).eq(0);
                            let share = self.iou.get([image, anchor, label]);
                            let more = share.gt(top.get());
                            let hit = valid & open & more;
                            top.update(hit, share);
                            anchor_of.update(hit, anchor);
                            label_of.update(hit, label);
                        });
                    });
                });
                let found = anchor_of.get();
                let some = found.ge(0);
                going.set(some);
                k.when(some, || {
                    let label = label_of.get();
                    let at = self.at(image, &found.clamped(self.p.anchors));
                    let share = top.get();
                    self.state.set(&at, 1);
                    self.object.set(&at, label);
                    self.best.set(&at, share);
                    self.taken.set([image, &label.clamped(labels)], 1);
                    positive.set(positive.get() + 1);
                });
            });
        });
        positive.get()
    }

    /// Other anchors take the object they overlap most; enough overlap makes them positive. Returns how many
    /// positive ones there are.
    fn extend(&self, image: &Index, objects: KernelValue<'k>, positive: KernelValue<'k>) -> KernelValue<'k> {
        let k = self.k;
        let count = k.cell("count", DType::I64).holding(positive);
        self.each_anchor(image, |anchor, at| {
            k.when(self.state.get(at).ne(1), || {
                let top = k.cell("top", F32).holding(-1.0);
                let label_of = k.cell("label_of", DType::I64).holding(-1);
                k.each("label", self.p.labels, |label| {
                    let valid = k.position(label).lt(objects);
                    let share = self.iou.get([image, anchor, label]);
                    let hit = valid & share.gt(top.get());
                    top.update(hit, share);
                    label_of.update(hit, label);
                });
                let (share, label) = (top.get(), label_of.get());
                self.best.set(at, share);
                self.object.set(at, label);
                let enough = share.gt(self.p.overlap) & (self.p.overlap > 0.0);
                self.state.set(at, enough.select(1, -1));
                let next = count.get() + 1;
                count.update(enough, next);
            });
        });
        count.get()
    }

    /// Negative anchors: all others, or those of least background probability, a multiple of the positive ones.
    fn negatives(&self, image: &Index, positive: KernelValue<'k>) {
        let (k, anchors) = (self.k, self.p.anchors);
        if self.p.mining_ratio <= 0.0 {
            self.each_anchor(image, |_, at| {
                let state = self.state.get(at);
                self.state.set(at, state.ne(1).select(0, state));
            });
            return;
        }
        let wanted = (positive.cast(F32) * self.p.mining_ratio).cast(DType::I64).max(self.p.least_negative);
        let rest = k.int(anchors as i64) - positive;
        let wanted = wanted.min(rest);
        let going = k.cell("going", DType::Bool).holding(true);
        k.each("round", anchors, |round| {
            let more = k.position(round).lt(wanted);
            k.when(going.get() & more, || {
                let least = k.cell("least", F32).holding(f64::INFINITY);
                let found = k.cell("found", DType::I64).holding(-1);
                self.each_anchor(image, |anchor, at| {
                    let open = self.state.get(at).eq(-1);
                    let far = self.best.get(at).lt(self.p.mining_overlap);
                    let p = self.background.get(at);
                    let less = p.lt(least.get());
                    let hit = open & far & less;
                    least.update(hit, p);
                    found.update(hit, anchor);
                });
                let which = found.get();
                let some = which.ge(0);
                going.set(some);
                k.when(some, || self.state.set([image, &which.clamped(anchors)], 0));
            });
        });
    }

    /// Classes, offsets and masks of what was decided.
    fn write(&self, image: &Index) {
        let (k, v) = (self.k, self.p.variances);
        // The logarithm is computed in f64, as kernels have it.
        let encode = |a: &[Ex]| {
            let a: Vec<_> = a.iter().map(|x| x.cast(DType::F64)).collect();
            let size = |i: usize| &a[i + 2] - &a[i];
            let centre = |i: usize| (&a[i] + &a[i + 2]) * 0.5;
            let at = |axis: usize| (centre(4 + axis) - centre(axis)) / size(axis) / a[0].lit(v[axis]);
            let log = |axis: usize| (size(4 + axis) / size(axis)).log() / a[0].lit(v[axis + 2]);
            [at(0), at(1), log(0), log(1)].map(|x| x.cast(F32))
        };
        self.each_anchor(image, |anchor, at| {
            let state = self.state.get(at);
            k.when(state.eq(0), || self.class.set(at, 0.0));
            k.when(state.eq(1), || {
                let label = self.object.get(at).clamped(self.p.labels);
                let class = self.label.get(&self.label_at(image, &label, 0));
                self.class.set(at, class + 1.0);
                let values = k.eval(&self.corners(image, anchor, &label), encode);
                for (c, value) in (0..).zip(values) {
                    self.offsets.set(&at.scale(4).offset(c), value);
                    self.mask.set(&at.scale(4).offset(c), 1.0);
                }
            });
        });
    }
}

fn problem(params: &Params, anchors: u64, labels: &[u64]) -> TargetProblem {
    let get = |name: &str, default: f64| params.float(name).unwrap_or(default);
    TargetProblem {
        anchors,
        labels: labels[1],
        width: labels[2],
        overlap: get("overlap_threshold", 0.5),
        ignore: get("ignore_label", -1.0),
        mining_ratio: get("negative_mining_ratio", -1.0),
        mining_overlap: get("negative_mining_thresh", 0.5),
        least_negative: params.int("minimum_negative_samples").unwrap_or(0),
        variances: variances(params),
    }
}

/// Types: anchors, labels, background probabilities; then the results and the scratch.
fn kernel(p: TargetProblem, images: u64, inputs: &[DenseType; 3], results: &[DenseType; 8]) -> Result<Kernel, OpError> {
    let k = &KernelScope::new("multibox_target");
    let [anchor, label, background] = k.inputs(["anchor", "label", "background"], inputs.each_ref());
    let names = ["offsets", "mask", "class", "iou", "state", "object", "best", "taken"];
    let [offsets, mask, class, iou, state, object, best, taken] = k.outputs(names, results.each_ref());
    let t = Targets { k, p, anchor, label, background, offsets, mask, class, iou, state, object, best, taken };
    k.parallel_each("image", images, |image| {
        let objects = t.objects(image);
        t.prepare(image);
        // An image without objects decides nothing.
        k.when(objects.gt(0), || {
            let positive = t.pair_off(image, objects);
            let positive = t.extend(image, objects, positive);
            t.negatives(image, positive);
            t.write(image);
        });
    });
    k.finish()
}

pub fn multibox_target() -> OpDef {
    let compute = formulas(|g, cx| {
        let [anchor, label, scores] = g.operands().map(|x| x.cast(F32));
        let (labels, d) = (label.dims()?, scores.dims()?);
        let (images, n) = (d[0], d[2]);
        let shares = g.op("softmax", &[scores], Params::new().with("axis", 1));
        let background = shares.slice(1, 0, 1).reshape([images, n]);
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
        let inputs = [anchor.ty()?, label.ty()?, background.ty()?];
        let kernel = kernel(problem(cx.params, n, &labels), images, &inputs, &results);
        let made = g.kernel(kernel, &[anchor, label, background], &results)?;
        Ok(made[..3].iter().map(|x| x.cast(cx.outputs[0].dtype)).collect())
    });
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
        .groups(&["anchor", "label", "cls_pred"], FLOATS)
        .param("overlap_threshold", 0.5, "overlap above which an anchor is positive")
        .param("ignore_label", -1.0, "class of anchors that do not count")
        .param("negative_mining_ratio", -1.0, "negative anchors by positive one; negative: all")
        .param("negative_mining_thresh", 0.5, "overlap below which an anchor may be negative")
        .param("minimum_negative_samples", 0, "least number of negative anchors")
        .param("variances", vec![0.1, 0.1, 0.2, 0.2], "divisors of the offsets")
        .outputs(3, 3)
        .no_gradient()
        .ulp(64.0)
        .mxnet("_contrib_MultiBoxTarget")
}
